"""Validation of a request spec against the public limits, for all APIs."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request import limits
from penstock.edge.request.spec import ChatInput, Message, Prompt, RequestSpec, TextInput, TokenInput
from penstock.edge.request.tools import violations_of_calls, violations_of_tools
from penstock.mesh.forms import form_problem
from penstock.v1.failure_pb2 import FieldViolation
from penstock.v1.inference_pb2 import Priority

Violations = Iterator[tuple[str, str]]  # field of the spec, what is wrong and what is allowed

_REQUEST_ID = re.compile(rf"[A-Za-z0-9._:-]{{0,{limits.REQUEST_ID_CHARS}}}")
_PRIORITIES = frozenset(Priority.values())
_SPEC_FIELD_NAMES: Mapping[str, str] = MappingProxyType({})


def validate(spec: RequestSpec, field_names: Mapping[str, str] = _SPEC_FIELD_NAMES) -> None:
    """Raise InvalidArgument with all violations. `field_names` maps fields of the spec to names of the caller's API."""
    found = [(field_names.get(field, field), wrong) for field, wrong in _violations(spec)]
    if found:
        raise InvalidArgument(
            "; ".join(f"{field} {wrong}" for field, wrong in found),
            field_violations=[FieldViolation(field=field, description=wrong) for field, wrong in found],
        )


def is_request_id(text: str) -> bool:
    return _REQUEST_ID.fullmatch(text) is not None


def _violations(spec: RequestSpec) -> Violations:
    yield from _names(spec)
    yield from _prompt(spec)
    yield from _numbers(spec)
    yield from _stops(spec)
    yield from _form(spec)


def _names(spec: RequestSpec) -> Violations:
    for name, value in (("request_id", spec.request_id), ("answer_id", spec.answer_id)):
        if not is_request_id(value):
            yield name, f"is at most {limits.REQUEST_ID_CHARS} characters of letters, digits and ._:-"
    if not is_request_id(spec.model_version):
        yield "model_version", "is not a version that `accepted` returned"
    yield from _at_most("model", _size(spec.model), limits.MODEL_NAME_BYTES, "bytes")
    if spec.priority not in _PRIORITIES:
        yield "priority", f"is {spec.priority}; allowed are {', '.join(Priority.keys())}"


def _prompt(spec: RequestSpec) -> Violations:
    yield from input_violations(spec.input)
    yield from _at_most("resume_ids", len(spec.resume_ids), limits.OUTPUT_TOKENS, "token ids")


def input_violations(prompt: Prompt) -> Violations:
    match prompt:
        case TextInput(text):
            yield from _at_most("input", _size(text), limits.TEXT_BYTES, "bytes")
        case ChatInput(messages, tools, tool_choice):
            yield from _conversation(messages)
            if tools or prompt.must_call:
                yield from violations_of_tools(tools, tool_choice)
        case TokenInput(ids):
            yield from _within("input", len(ids), 1, limits.PROMPT_TOKENS, "token ids")


def _conversation(messages: tuple[Message, ...]) -> Violations:
    yield from _within("input", len(messages), 1, limits.MESSAGES, "messages")
    yield from _at_most("input", sum([_text_size(message) for message in messages]), limits.TEXT_BYTES, "bytes")
    for index, message in enumerate(messages):
        if message.tool_calls:
            yield from violations_of_calls(message.tool_calls, index)
        if not 1 <= _size(message.role) <= limits.ROLE_BYTES:
            yield "input", f"has a role of {_size(message.role)} bytes at {index}; allowed are 1 to {limits.ROLE_BYTES}"
            return


def _numbers(spec: RequestSpec) -> Violations:
    yield from _within("temperature", spec.temperature, 0, limits.TEMPERATURE)
    yield from _above("top_p", spec.top_p, 0, 1)
    yield from _within("top_k", spec.top_k, 0, limits.TOP_K)
    yield from _within("min_p", spec.min_p, 0, 1)
    yield from _within("presence_penalty", spec.presence_penalty, -limits.PENALTY, limits.PENALTY)
    yield from _within("frequency_penalty", spec.frequency_penalty, -limits.PENALTY, limits.PENALTY)
    yield from _above("repetition_penalty", spec.repetition_penalty, 0, limits.REPETITION_PENALTY)
    if spec.seed is not None:
        yield from _within("seed", spec.seed, 0, 2**64 - 1)
    if spec.max_output_tokens is not None:
        yield from _within("max_output_tokens", spec.max_output_tokens, 1, limits.OUTPUT_TOKENS)
    if spec.timeout_s is not None:
        yield from _above("timeout_s", spec.timeout_s, 0, limits.TIMEOUT_S)
    yield from _within("n", spec.n, 1, limits.CHOICES)
    if spec.n > 1 and (spec.resume_ids or spec.answer_id):
        yield "n", f"is {spec.n}; an answer with an id, or that is resumed, is generated alone"
    yield from _within("top_logprobs", spec.top_logprobs, 0, limits.TOP_LOGPROBS)
    yield from _biases(spec.logit_bias)


def _biases(biases: tuple[tuple[int, float], ...]) -> Violations:
    yield from _at_most("logit_bias", len(biases), limits.LOGIT_BIASES, "token ids")
    for token_id, bias in biases:
        if not -limits.LOGIT_BIAS <= bias <= limits.LOGIT_BIAS:
            text = f"is {bias} for token id {token_id}; allowed are {-limits.LOGIT_BIAS} to {limits.LOGIT_BIAS}"
            yield "logit_bias", text
            return


def _stops(spec: RequestSpec) -> Violations:
    yield from _at_most("stop", len(spec.stop), limits.STOP_STRINGS, "strings")
    sizes = [_size(each) for each in spec.stop]
    for index, size in enumerate(sizes):
        if not 1 <= size <= limits.STOP_BYTES:
            yield "stop", f"has a string of {size} bytes at {index}; allowed are 1 to {limits.STOP_BYTES}"
            return


def _form(spec: RequestSpec) -> Violations:
    if spec.form is None and not (isinstance(spec.input, ChatInput) and spec.input.must_call):
        return
    if spec.form and (problem := form_problem(spec.form)):
        yield "form", problem
    if spec.ignore_eos:
        yield (
            "ignore_eos",
            "is set together with a form of the output, whose end it would ignore; leave one of them out",
        )


def _text_size(message: Message) -> int:
    """Return the bytes of all texts of a message that a template renders, without the role."""
    size = _size(message.content)
    if message.is_plain:
        return size
    size += _size(message.reasoning) + _size(message.name) + _size(message.tool_call_id)
    return size + sum(_size(call.name) + _size(call.arguments) for call in message.tool_calls)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _at_most(field: str, size: int, most: int, of: str) -> Violations:
    if size > most:
        yield field, f"has {size} {of}; at most {most} are allowed"


# Written as `not low <= value`, so that a NaN is outside every range.
def _within(field: str, value: float, low: float, high: float, of: str = "") -> Violations:
    if not low <= value <= high:
        verb = f"has {value} {of}" if of else f"is {value}"
        yield field, f"{verb}; allowed are {low} to {high}"


def _above(field: str, value: float, low: float, high: float) -> Violations:
    if not low < value <= high:
        yield field, f"is {value}; allowed is above {low}, up to {high}"
