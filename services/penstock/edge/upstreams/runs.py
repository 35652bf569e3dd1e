"""Runs by their handles on one stream: frames about a run become events of its request.

Workers and edges of other regions send the same frames: one step for all runs, and one end for each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from penstock.chassis.errors import error_from_failure
from penstock.chassis.streams.endpoint import FrameOutOfRange
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.effects import Effect, Emit
from penstock.edge.lifecycle.output import LikeliestTokens
from penstock.mesh.v1.worker_pb2 import Step


class StreamRunHandle:
    """Handle of one run on a stream."""

    def __init__(self, stream: "RunStream", handle: int) -> None:
        self._stream = stream
        self._handle = handle

    def cancel(self) -> None:
        self._stream.cancel(self._handle)

    def discard(self) -> None:
        self._stream.discard(self._handle)


class RunStream(ABC):
    """The runs of one stream. Frames about an unknown handle are ignored."""

    def __init__(self, runner: EffectRunner) -> None:
        self._runner = runner
        self._contexts: dict[int, RequestContext] = {}
        self._last_handle = 0

    @property
    def runs(self) -> int:
        return len(self._contexts)

    def _add(self, context: RequestContext) -> int:
        """Return the handle of a new run."""
        self._last_handle += 1
        self._contexts[self._last_handle] = context
        return self._last_handle

    @abstractmethod
    def cancel(self, handle: int) -> None:
        """Cancel a run. Its end is a frame."""

    def discard(self, handle: int) -> None:
        """Ignore further frames about a run."""
        self._remove(handle)

    def _remove(self, handle: int) -> None:
        self._contexts.pop(handle, None)

    def _on_run_frame(self, kind: str | None, frame: Any) -> None:
        """Apply a frame of the kinds `step`, `finished`, `cancelled` and `failed`."""
        if kind == "step":
            self._on_step(frame.step)
        elif kind == "finished":
            finished = frame.finished
            self._on_run_over(
                finished.handle,
                lambda context, now: context.request.on_run_finished(
                    finished.reason,
                    finished.output_tokens,
                    finished.cached_prompt_tokens,
                    finished.times,
                    now,
                    embedding=finished.embedding,
                ),
            )
        elif kind == "cancelled":
            cancelled = frame.cancelled
            self._on_run_over(
                cancelled.handle,
                lambda context, now: context.request.on_run_stopped(
                    cancelled.output_tokens, cancelled.kv_blocks_freed, cancelled.times, now
                ),
            )
        elif kind == "failed":
            error, never_ran = error_from_failure(frame.failed.failure), frame.failed.never_ran
            self._on_run_over(
                frame.failed.handle,
                lambda context, now: context.request.on_run_rejected(error, now, never_ran=never_ran),
            )

    def _on_step(self, step: Step) -> None:
        now, runs, runner, logprobs = self._runner.now(), self._contexts, self._runner, step.logprobs
        likeliest = _likeliest_of(step) if step.top_token_ids else None
        try:
            for at, (handle, token_id, index) in enumerate(
                zip(step.handles, step.token_ids, step.indexes, strict=True)
            ):
                context = runs.get(handle)
                if context is not None:
                    logprob = logprobs[at] if logprobs and context.spec.logprobs else None
                    top = likeliest[at] if likeliest else None
                    effects = context.request.on_token(index, token_id, logprob, now, top)
                    if isinstance(effects, Emit):
                        runner.emit(context, effects)
                    else:
                        runner.apply(context, effects)
        except (ValueError, IndexError):
            _check_lengths(step)  # only now, because a check in advance would cost as much as the token
            raise

    def _on_run_over(self, handle: int, end: Callable[[RequestContext, float], list[Effect]]) -> None:
        context = self._contexts.get(handle)
        if context is not None:
            self._remove(handle)
            self._runner.apply(context, end(context, self._runner.now()))


def _likeliest_of(step: Step) -> list[LikeliestTokens]:
    """Return the likeliest tokens of each token of a step. Raises FrameOutOfRange if they do not divide equally."""
    ids, logprobs, tokens = step.top_token_ids, step.top_logprobs, len(step.token_ids)
    if not tokens or len(ids) % tokens or len(ids) != len(logprobs):
        text = f"Step.top_token_ids and top_logprobs have {len(ids)} and {len(logprobs)} entries for {tokens} tokens"
        raise FrameOutOfRange(f"{text}; allowed: equally many for each token", field="top_token_ids")
    count = len(ids) // tokens
    return [(ids[start : start + count], logprobs[start : start + count]) for start in range(0, len(ids), count)]


def _check_lengths(step: Step) -> None:
    """Raise FrameOutOfRange if the arrays of a step are not parallel."""
    lengths = len(step.handles), len(step.token_ids), len(step.indexes), len(step.logprobs) or len(step.handles)
    if len(set(lengths)) > 1:
        text = f"Step.handles, token_ids, indexes and logprobs are of {lengths} entries; allowed: as many of each"
        raise FrameOutOfRange(text, field="handles")
