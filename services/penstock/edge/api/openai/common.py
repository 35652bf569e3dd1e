"""What is common to the generating endpoints: the request as parsed, and the fields that say how tokens are drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypedDict

from google.protobuf.duration_pb2 import Duration

from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.edge.api.openai.fields import Fields, describe, wrong_type
from penstock.edge.request.spec import RequestSpec
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Accepted, Delta, Finished, Priority, Timeline

_SEED_MASK = 2**64 - 1
# The API's way to say how urgent a request is; a tenant's own class is never raised by it.
_PRIORITY_OF_TIER: Mapping[str, Priority.ValueType] = MappingProxyType(
    {
        "": Priority.PRIORITY_UNSPECIFIED,
        "auto": Priority.PRIORITY_UNSPECIFIED,
        "default": Priority.PRIORITY_STANDARD,
        "flex": Priority.PRIORITY_BATCH,
        "priority": Priority.PRIORITY_INTERACTIVE,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRequest:
    """What is to be generated, and how the answer is to look."""

    spec: RequestSpec
    stream: bool = False
    include_usage: bool = False  # whether a stream of chunks ends with one that counts tokens
    continuous_usage: bool = False  # whether each of its chunks counts them
    instructions: str | None = None  # given back in a response
    metadata: Mapping[str, str] = field(default_factory=dict)  # likewise


class GenerationOptions(TypedDict):
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    explain: bool
    priority: Priority.ValueType


def generation_options(fields: Fields) -> GenerationOptions:
    """The fields that every generating endpoint shares, those that other servers added to the API among them."""
    top_k = fields.integer("top_k", 0)
    return GenerationOptions(
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        top_k=0 if top_k == -1 else top_k,  # -1 is how vLLM's clients say "all"
        min_p=fields.number("min_p", 0.0),
        presence_penalty=fields.number("presence_penalty", 0.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        seed=_seed(fields),
        stop=_stop(fields),
        ignore_eos=fields.flag("ignore_eos"),
        explain=fields.flag("explain"),
        priority=_priority(fields),
    )


def usage_flags(fields: Fields) -> tuple[bool, bool]:
    """Whether a stream ends with usage, and whether each chunk has it; `continuous` asks for the last one as well."""
    options = fields.object("stream_options")
    continuous = options.flag("continuous_usage_stats")
    return options.flag("include_usage") or continuous, continuous


def _seed(fields: Fields) -> int | None:
    seed = fields.integer("seed", None)
    # The API's seeds are signed, ours are 64 plain bits; JSON integers of more bits were read as floats and refused.
    return None if seed is None else seed & _SEED_MASK


def _stop(fields: Fields) -> tuple[str, ...]:
    stop: Any = fields.get("stop")
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, list):
        raise wrong_type("stop", "a string or a list of strings", stop)
    for index, each in enumerate(stop):
        if not isinstance(each, str):
            raise wrong_type(f"stop[{index}]", "a string", each)
    return tuple(stop)


def _priority(fields: Fields) -> Priority.ValueType:
    tier = fields.text("service_tier")
    if tier not in _PRIORITY_OF_TIER:
        allowed = ", ".join(filter(None, _PRIORITY_OF_TIER))
        raise InvalidArgument(f"service_tier is {describe(tier)}; allowed are {allowed}", field="service_tier")
    return _PRIORITY_OF_TIER[tier]


Json = dict[str, Any]


class ResponseSerializer(Protocol):
    """One request's answer, as a stream or whole. A stream is `begin`, any number of `delta`, then `finish` or `fail`.

    Each returns what to send, which may be nothing.
    """

    def begin(self, accepted: Accepted) -> bytes: ...

    def delta(self, delta: Delta) -> bytes: ...

    def finish(self, finished: Finished) -> bytes: ...

    def fail(self, error: PenstockError) -> bytes:
        """End a stream that has begun; before that an error is an HTTP status."""

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes: ...


def finish_reason(finished: Finished) -> str:
    return "length" if finished.reason == FINISH_REASON_LENGTH else "stop"


def usage(prompt_tokens: int, output_tokens: int, cached_prompt_tokens: int = 0) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_prompt_tokens},
    }


def usage_of(finished: Finished) -> Json:
    spent = finished.usage
    return usage(spent.prompt_tokens, spent.output_tokens, spent.cached_prompt_tokens)


def extra_members(finished: Finished) -> Json:
    """What `explain` asked for: a member of our own beside the API's."""
    return {"timeline": _timeline(finished.timeline)} if finished.HasField("timeline") else {}


def _timeline(timeline: Timeline) -> Json:
    return {
        "total_s": _seconds(timeline.total),
        "stages": [
            {"tier": each.tier, "name": each.name, "start_s": _seconds(each.start), "length_s": _seconds(each.length)}
            for each in timeline.stages
        ],
        "trace_id": timeline.trace_id,
        "worker_id": timeline.worker_id,
        "attempts": timeline.attempts,
    }


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
