"""The chunks that a replica holds: which lines may start, which are in the mesh, and what becomes of each. Pure."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from penstock.batch.jobs.chunks import ChunkKey, ClaimedChunk, Line, LineResult
from penstock.batch.lines.line import (
    LineCall,
    LineInvalid,
    answer_row,
    error_row,
    line_id,
    parse_line,
    refused_row,
)
from penstock.batch.runner.suspects import MAX_LOST_RUNS, Suspects
from penstock.chassis.durations import seconds_of
from penstock.mesh.v1 import batch_pb2 as pb

LOST_RETRY_S = 1.0  # s until a line that was lost starts again
MAX_RETRY_S = 60.0  # s that an edge may delay a line
# After which a chunk starts no line until the store confirms it again. A replica that was suspended, or has lost the
# store, thus starts none later than 1 s after the answer of a cancel.
MAX_UNCONFIRMED_S = 0.95


@dataclass(slots=True, eq=False)
class RunnableLine:
    """A line without a result."""

    chunk: "HeldChunk"
    number: int  # in its file
    call: LineCall
    line_id: str
    may_have_run: bool = False  # and have been lost while it ran, so that it may crash engines
    lost_runs: int = 0
    not_before: float = 0.0  # s
    progress: bytes = b""  # of its latest run; empty: it begins anew
    handle: int = 0  # in the mesh; 0: it waits here
    edge: str = ""  # that has it
    is_running: bool = False  # on a worker


@dataclass(slots=True, eq=False)
class HeldChunk:
    """One chunk under a lease."""

    claimed: ClaimedChunk
    ends_at: float  # of the window of its batch, s
    confirmed_at: float  # s; when the store was asked whether its lines may start, and said yes
    waiting: deque[RunnableLine] = field(default_factory=deque)
    in_mesh: int = 0
    uncommitted: int = 0  # results that the store does not have yet
    is_stopped: bool = False  # no line of it may start
    is_lost: bool = False  # another replica has it, or this one under a later epoch
    has_turn: bool = False  # whether it is among those whose lines start in turn

    @property
    def key(self) -> ChunkKey:
        return self.claimed.key

    @property
    def is_over(self) -> bool:
        """Whether it can be released."""
        has_lines = self.waiting and not self.is_stopped
        return not (has_lines or self.in_mesh or self.uncommitted)


class HeldChunks:
    """All chunks of one replica. Lines of its chunks start in turn, so that no batch waits for another."""

    def __init__(self) -> None:
        self._chunks: dict[ChunkKey, HeldChunk] = {}
        self._turns: deque[HeldChunk] = deque()  # chunks with lines that wait
        self._in_mesh: dict[int, RunnableLine] = {}  # by handle
        self._suspects = Suspects()
        self._handles = count(1)

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[HeldChunk]:
        return iter(list(self._chunks.values()))

    @property
    def waiting(self) -> int:
        return sum(len(each.waiting) for each in self._chunks.values() if not each.is_stopped)

    @property
    def in_mesh(self) -> int:
        return len(self._in_mesh)

    def add(self, claimed: ClaimedChunk, lines: Iterable[Line], claimed_at: float) -> list[LineResult]:
        """Hold a chunk. Return the results of lines that are no calls.

        claimed_at: s of the clock of `now`, when the store was asked for it. The caller has stopped an earlier lease of
        the same chunk, as lost.
        """
        chunk = self._chunks[claimed.key] = HeldChunk(claimed, claimed_at + claimed.seconds_left, claimed_at)
        invalid: list[LineResult] = []
        for line in lines:
            answer_id = line_id(claimed.key.batch_id, line.number)
            try:
                call = parse_line(line.content, claimed.endpoint)
            except LineInvalid as error:
                row = error_row(answer_id, error.custom_id, code=error.code, message=error.message)
                invalid.append(_result(chunk, line.number, row, is_error=True))
                continue
            # Another holder of the chunk may have died while the line ran.
            chunk.waiting.append(RunnableLine(chunk, line.number, call, answer_id, may_have_run=claimed.epoch > 1))
        chunk.uncommitted += len(invalid)
        self._give_turn(chunk)
        return invalid

    def next_line(self, edge: str, now: float) -> RunnableLine | None:
        """Take the next line that may start, for an edge. None if there is none now."""
        for _ in range(len(self._turns)):
            chunk = self._turns.popleft()
            if chunk.is_stopped or not chunk.waiting:
                chunk.has_turn = False
                continue
            self._turns.append(chunk)
            if now - chunk.confirmed_at > MAX_UNCONFIRMED_S:
                continue
            for _ in range(len(chunk.waiting)):
                line = chunk.waiting.popleft()
                if line.not_before <= now and self._suspects.may_join(edge, line.lost_runs):
                    return self._enter_mesh(line, edge)
                chunk.waiting.append(line)
        return None

    def _enter_mesh(self, line: RunnableLine, edge: str) -> RunnableLine:
        line.handle, line.edge, line.is_running = next(self._handles), edge, False
        line.chunk.in_mesh += 1
        self._suspects.add(edge, line.lost_runs)
        self._in_mesh[line.handle] = line
        return line

    def find(self, handle: int, edge: str) -> RunnableLine | None:
        """Return a line that this edge has. Another edge cannot end it."""
        line = self._in_mesh.get(handle)
        return line if line and line.edge == edge else None

    def on_ended(self, line: RunnableLine, ended: pb.LineEnded, now: float) -> list[LineResult]:
        """Take a line out of the mesh. Return the results that follow."""
        self._leave_mesh(line)
        chunk = line.chunk
        if chunk.is_lost:
            return []
        if ended.verdict == pb.LINE_VERDICT_STOP:  # of a batch that was cancelled, the answers alone are kept
            return [] if chunk.is_stopped else self._stop_batch(line, ended)
        if ended.verdict in (pb.LINE_VERDICT_ANSWERED, pb.LINE_VERDICT_REFUSED):
            chunk.uncommitted += 1
            return [_ended_result(line, ended)]
        is_lost = ended.verdict == pb.LINE_VERDICT_LOST
        line.lost_runs += is_lost
        line.may_have_run |= is_lost
        if line.lost_runs >= MAX_LOST_RUNS:
            return [self._give_up(line, ended.failure.reason)]
        delay = retry_delay_of(ended) if ended.failure.HasField("retry_after") else LOST_RETRY_S
        self._wait_again(line, now + delay)
        return []

    def on_edge_lost(self, edge: str, now: float) -> tuple[list[RunnableLine], list[LineResult]]:
        """Take back the lines of an edge that is lost. Return them, as they were in the mesh, and the results.

        The run of a line that only waited is not lost.
        """
        lost = [each for each in self._in_mesh.values() if each.edge == edge]
        results: list[LineResult] = []
        for line in lost:
            self._leave_mesh(line)
            if line.chunk.is_lost:
                continue
            line.lost_runs += line.is_running
            line.may_have_run = True  # an edge tells only of the first output, after the prefill
            if line.lost_runs >= MAX_LOST_RUNS:
                results.append(self._give_up(line, "EDGE_LOST"))
            else:
                self._wait_again(line, now)
        return lost, results

    def stop(self, key: ChunkKey, *, is_lost: bool) -> list[RunnableLine]:
        """Start no further line of a chunk, if it is held. Return its lines in the mesh, which the caller stops."""
        chunk = self._chunks.get(key)
        if chunk is None:
            return []
        chunk.is_stopped, chunk.is_lost = True, chunk.is_lost or is_lost
        if is_lost:
            chunk.uncommitted = 0
        return [each for each in self._in_mesh.values() if each.chunk is chunk]

    def on_committed(self, results: Sequence[LineResult]) -> None:
        for each in results:
            chunk = self._chunks.get(each.key)
            if chunk and chunk.claimed.epoch == each.epoch and not chunk.is_lost:
                chunk.uncommitted -= 1

    def remove_over(self) -> list[HeldChunk]:
        """Remove and return the chunks that can be released."""
        over = [each for each in self._chunks.values() if each.is_over]
        for each in over:
            del self._chunks[each.key]
        return over

    def _leave_mesh(self, line: RunnableLine) -> None:
        del self._in_mesh[line.handle]
        self._suspects.remove(line.edge, line.lost_runs)
        line.chunk.in_mesh -= 1
        line.handle, line.edge = 0, ""

    def _give_up(self, line: RunnableLine, reason: str) -> LineResult:
        line.chunk.uncommitted += 1
        return _failed_result(
            line, "line_lost", f"{line.lost_runs} runs of the line were lost; the last reason is {reason}"
        )

    def _wait_again(self, line: RunnableLine, not_before: float) -> None:
        line.not_before = not_before
        line.chunk.waiting.appendleft(line)
        self._give_turn(line.chunk)

    def _give_turn(self, chunk: HeldChunk) -> None:
        """Let the chunk start lines in turn, once in each round."""
        if chunk.waiting and not chunk.has_turn:
            chunk.has_turn = True
            self._turns.append(chunk)

    def _stop_batch(self, line: RunnableLine, ended: pb.LineEnded) -> list[LineResult]:
        """End the lines that are left of a chunk with the error that ended one of them."""
        chunk = line.chunk
        left = [line, *chunk.waiting]
        chunk.waiting.clear()
        chunk.uncommitted += len(left)
        return [_failed_result(each, ended.failure.reason.lower(), ended.failure.message) for each in left]


def retry_delay_of(ended: pb.LineEnded) -> float:
    """Return the time until the line may start again, in s. An edge alone does not stop a batch for long."""
    return min(MAX_RETRY_S, seconds_of(ended.failure.retry_after))


def _failed_result(line: RunnableLine, code: str, message: str) -> LineResult:
    row = error_row(line.line_id, line.call.custom_id, code=code, message=message)
    return _result(line.chunk, line.number, row, is_error=True)


def _ended_result(line: RunnableLine, ended: pb.LineEnded) -> LineResult:
    is_error = ended.verdict == pb.LINE_VERDICT_REFUSED
    make = refused_row if is_error else answer_row
    row = make(
        line.line_id, line.call.custom_id, status=ended.status, request_id=ended.request_id, body=ended.body or b"null"
    )
    tokens = ended.input_tokens, ended.output_tokens
    return _result(line.chunk, line.number, row, is_error=is_error, tokens=tokens)


def _result(
    chunk: HeldChunk, number: int, row: bytes, *, is_error: bool, tokens: tuple[int, int] = (0, 0)
) -> LineResult:
    return LineResult(chunk.key, chunk.claimed.epoch, number, is_error, row, *tokens)
