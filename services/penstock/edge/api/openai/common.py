"""Types and fields that the generating endpoints share."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, TypedDict

from google.protobuf.duration_pb2 import Duration

from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.edge.api.openai.body.fields import Fields, describe, wrong_type
from penstock.edge.lifecycle.effects import Emit
from penstock.edge.output.answer import OutputFormat
from penstock.edge.request.spec import Prompt, RequestSpec
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Accepted, Delta, Finished, Priority, Timeline

_SEED_MASK = 2**64 - 1
# The API's field for the class of a request. It cannot raise the tenant's own class.
PRIORITY_OF_TIER: Mapping[str, Priority.ValueType] = MappingProxyType(
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
    """A parsed request: the spec and the format of the response."""

    spec: RequestSpec
    stream: bool = False
    include_usage: bool = False  # whether a stream ends with a chunk that has the usage
    continuous_usage: bool = False  # whether each chunk has the usage
    instructions: str | None = None  # returned in a response
    metadata: Mapping[str, str] = field(default_factory=dict)  # returned in a response
    text_format: Mapping[str, Any] | None = None  # returned in a response; None: plain text
    previous_response_id: str | None = None  # returned in a response
    is_stored: bool = False  # whether a response can be retrieved by its id
    is_background: bool = False  # whether a response goes on without its caller
    inputs: tuple[Prompt, ...] = ()  # of a list of several prompts; empty: that of `spec`
    answers: int = 1  # returned for each prompt: the best of the `spec.n` that are generated
    echo: bool = False  # whether the text of an answer begins with its prompt
    choice: int = 0  # index of the choice that is serialized
    is_one_of_several: bool = False  # whether the response has further choices, after which it ends

    @property
    def has_several_choices(self) -> bool:
        return self.spec.n > 1 or len(self.inputs) > 1

    @property
    def generated_spec(self) -> RequestSpec:
        """The spec of each answer that is generated. The best are chosen by log probabilities."""
        return replace(self.spec, logprobs=self.spec.logprobs or self.answers < self.spec.n)


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


def generation_options(
    fields: Fields, *, stop: str = "stop", tiers: Mapping[str, Priority.ValueType] = PRIORITY_OF_TIER
) -> GenerationOptions:
    """Parse the fields that all generating endpoints share, including extensions of other servers.

    `stop`: name of the field with the stop strings. `tiers`: the class of each `service_tier`.
    """
    top_k = fields.integer("top_k", 0)
    return GenerationOptions(
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        top_k=0 if top_k == -1 else top_k,  # clients of vLLM send -1 for all
        min_p=fields.number("min_p", 0.0),
        presence_penalty=fields.number("presence_penalty", 0.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        seed=_seed(fields),
        stop=_stop(fields, stop),
        ignore_eos=fields.flag("ignore_eos"),
        explain=fields.flag("explain"),
        priority=priority_of(fields, tiers),
    )


def usage_flags(fields: Fields) -> tuple[bool, bool]:
    """Return whether a stream ends with usage, and whether each chunk has it. The latter implies the former."""
    options = fields.object("stream_options")
    continuous = options.flag("continuous_usage_stats")
    return options.flag("include_usage") or continuous, continuous


def _seed(fields: Fields) -> int | None:
    seed = fields.integer("seed", None)
    # Seeds of the API are signed, seeds of the edge unsigned. JSON integers above 64 bits are rejected as floats.
    return None if seed is None else seed & _SEED_MASK


def _stop(fields: Fields, name: str) -> tuple[str, ...]:
    stop: Any = fields.get(name)
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, list):
        raise wrong_type(name, "a string or a list of strings", stop)
    for index, each in enumerate(stop):
        if not isinstance(each, str):
            raise wrong_type(f"{name}[{index}]", "a string", each)
    return tuple(stop)


def priority_of(fields: Fields, tiers: Mapping[str, Priority.ValueType] = PRIORITY_OF_TIER) -> Priority.ValueType:
    tier = fields.text("service_tier")
    if tier not in tiers:
        allowed = ", ".join(filter(None, tiers))
        raise InvalidArgument(f"service_tier is {describe(tier)}; allowed are {allowed}", field="service_tier")
    return tiers[tier]


Json = dict[str, Any]
AnyDelta = Delta | Emit  # as a reader receives it, or as it arrives


class ResponseSerializer(Protocol):
    """Serializes one response. A stream is `begin`, any number of `delta`, then `finish` or `fail`.

    Each method returns the bytes to send, which may be empty.
    """

    def begin(self, accepted: Accepted) -> bytes: ...

    def on_model_changed(self, output: OutputFormat) -> None:
        """Divide the text by another format. Called before the first delta. A stream begun as plain text stays so."""

    def delta(self, delta: AnyDelta) -> bytes: ...

    def finish(self, finished: Finished) -> bytes: ...

    def fail(self, error: PenstockError) -> bytes:
        """End a stream that has begun. An error before that is an HTTP status."""

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes: ...

    def collect_logprobs(self, delta: AnyDelta) -> None:
        """Keep the log probabilities of a part of an answer that is sent as a whole."""


class NumberedSerializer(ResponseSerializer, Protocol):
    """Serializes a response of the Responses API, whose events have sequence numbers."""

    @property
    def next_number(self) -> int:
        """The sequence number of the next event."""

    def cancel(self) -> bytes:
        """End a stream that has begun, because the response was cancelled."""


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
    counts = finished.usage
    return usage(counts.prompt_tokens, counts.output_tokens, counts.cached_prompt_tokens)


def extra_members(finished: Finished) -> Json:
    """Return the timeline as an additional member, if `explain` requested it."""
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
