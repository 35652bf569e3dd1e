"""An answer in the shape of one endpoint, and the parts that shapes have in common."""

from typing import Any, Protocol

from google.protobuf.duration_pb2 import Duration

from penstock.chassis.errors import PenstockError
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Accepted, Delta, Finished, Timeline

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
