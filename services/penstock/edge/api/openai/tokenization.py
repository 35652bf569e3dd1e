"""The endpoints `POST /tokenize` and `POST /detokenize`, in the shape of vLLM's."""

import orjson

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields, wrong_type
from penstock.edge.api.openai.chat import conversation
from penstock.edge.request import limits
from penstock.edge.request.spec import Prompt, RequestSpec, TextInput, TokenInput
from penstock.edge.request.validation import validate
from penstock.v1.inference_pb2 import CountTokensResponse


def parse_tokenize(fields: Fields) -> tuple[RequestSpec, bool]:
    """Parse a body with a `prompt`, or with `messages` and `tools`. Returns also whether it asks for the tokens' texts.

    Raises InvalidArgument with the path of the field.
    """
    if fields.get("add_special_tokens") is False:
        raise InvalidArgument(
            "add_special_tokens is false, which is not supported; the tokens are those that a request would have",
            field="add_special_tokens",
        )
    prompt = fields.get("prompt")
    if (prompt is None) == (fields.get("messages") is None):
        raise InvalidArgument("give either a prompt or messages", field="prompt")
    given: Prompt = conversation(fields) if prompt is None else TextInput(fields.text("prompt"))
    spec = RequestSpec(request_id="", model=fields.text("model"), input=given)
    validate(spec, {"input": "messages" if prompt is None else "prompt"})
    return spec, fields.flag("return_token_strs")


def parse_detokenize(fields: Fields) -> RequestSpec:
    """Parse a body with `tokens`. Raises InvalidArgument with the path of the field."""
    ids = fields.get("tokens")
    if not isinstance(ids, list):
        raise wrong_type("tokens", "a list of token ids", ids)
    if len(ids) > limits.PROMPT_TOKENS:
        raise InvalidArgument(f"tokens has {len(ids)} ids; at most {limits.PROMPT_TOKENS} are allowed", field="tokens")
    for index, each in enumerate(ids):
        if isinstance(each, bool) or not isinstance(each, int):
            raise wrong_type(f"tokens[{index}]", "a token id", each)
    spec = RequestSpec(request_id="", model=fields.text("model"), input=TokenInput(tuple(ids)))
    validate(spec, {"input": "tokens"})
    return spec


def tokenized(counted: CountTokensResponse, texts: list[str] | None) -> bytes:
    return orjson.dumps(
        {
            "count": counted.prompt_tokens,
            "max_model_len": counted.context_length,
            "tokens": list(counted.token_ids),
            "token_strs": texts,
        }
    )


def detokenized(text: str) -> bytes:
    return orjson.dumps({"prompt": text})
