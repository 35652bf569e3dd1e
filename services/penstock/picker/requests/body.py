"""The body of an OpenAI request: model, prompt and output limit. A body that is not understood limits nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MAX_STRUCTURE = 250_000  # commas and brackets of a body that is parsed; objects of more would fill the memory
MAX_MODEL_CHARS = 256
MAX_OUTPUT_TOKENS = 1 << 20
DEFAULT_OUTPUT_TOKENS = 4_096  # of a request without a limit
MAX_PREFIX_BYTES = 1 << 16  # of a prompt that are compared; `PREFIX_DEPTHS` reach no further
OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class RequestBody:
    """What the picker reads of a body."""

    model: str = ""
    prompt_bytes: int = 0
    prefix: bytes = b""  # of the prompt, in a form in which prompts with a common beginning have one
    max_output_tokens: int = DEFAULT_OUTPUT_TOKENS


def parse_body(body: bytes) -> RequestBody:
    """Read a body of chat completions, completions, responses or embeddings. It raises nothing."""
    if sum(body.count(each) for each in (b",", b"[", b"{")) > MAX_STRUCTURE:
        return RequestBody(prompt_bytes=len(body))
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return RequestBody(prompt_bytes=len(body))
    if not isinstance(content, dict):
        return RequestBody(prompt_bytes=len(body))
    model = content.get("model")
    size, prefix = _prompt(content)
    return RequestBody(
        model=model[:MAX_MODEL_CHARS] if isinstance(model, str) else "",
        prompt_bytes=size,
        prefix=prefix,
        max_output_tokens=_max_output(content),
    )


def _max_output(content: Mapping[str, Any]) -> int:
    for name in OUTPUT_LIMITS:
        limit = content.get(name)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return min(limit, MAX_OUTPUT_TOKENS)
    return DEFAULT_OUTPUT_TOKENS


def _prompt(content: Mapping[str, Any]) -> tuple[int, bytes]:
    """Return the size of the prompt, and its beginning: tools and instructions first, as chat templates write them."""
    size, parts, kept = 0, [], 0
    for part in _parts(content):
        size += len(part)
        if kept < MAX_PREFIX_BYTES:
            parts.append(part)
            kept += len(part)
    return size, b"".join(parts)[:MAX_PREFIX_BYTES]


def _parts(content: Mapping[str, Any]) -> Iterator[bytes]:
    for name in ("tools", "instructions"):
        if (value := content.get(name)) is not None:
            yield _text(value)
    for name in ("messages", "prompt", "input"):
        value = content.get(name)
        if isinstance(value, list):
            yield from map(_text, value)
        elif value is not None:
            yield _text(value)


def _text(value: Any) -> bytes:
    """Return a part of a prompt: a text as it is, anything else as JSON."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else orjson.dumps(value)
