"""Chunks of batches: what a replica claims, and how it commits results."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from penstock.batch.work_signal import WorkSignal
from penstock.v1.inference_pb2 import PRIORITY_BATCH, Priority


class ChunkKey(NamedTuple):
    """One chunk of a batch."""

    batch_id: str
    first_line: int  # from 0


class ClaimedChunk(NamedTuple):
    """A chunk that this replica holds until its lease ends. Times are Unix seconds of the store's clock."""

    key: ChunkKey
    epoch: int  # of the lease; results need it
    line_count: int
    tenant_id: str
    key_id: str
    delegation: bytes
    endpoint: str
    expires_at: float  # of the batch
    seconds_left: float  # until then
    priority: "Priority.ValueType" = PRIORITY_BATCH  # class of its lines


class Claim(NamedTuple):
    """The chunks that a replica has claimed."""

    chunks: Sequence[ClaimedChunk]
    next_lease_s: float  # s until the first of the other chunks' leases ends; inf if there is none


class Line(NamedTuple):
    """One line of a file."""

    number: int  # from 0
    content: bytes  # without the line break


class LineResult(NamedTuple):
    """The end of one line, as a row of the output or the error file."""

    key: ChunkKey
    epoch: int
    number: int
    is_error: bool
    row: bytes  # JSON without a line break
    input_tokens: int
    output_tokens: int


class ChunkState(Enum):
    """What a renewed lease is."""

    HELD = "held"
    LOST = "lost"  # another replica has it, or may have it
    STOPPED = "stopped"  # the batch was cancelled or has expired: no further line, commit what has ended, release


class ChunkStore(Protocol):
    """The part of the store that runs batches. All methods raise StoreUnavailable."""

    @property
    def chunks_due(self) -> WorkSignal:
        """Set when this process has made chunks that may be claimed."""

    async def claim(self, replica: str, limit: int, lease_s: float) -> Claim: ...

    async def renew(self, held: Sequence[tuple[ChunkKey, int]], lease_s: float) -> Sequence[ChunkState]: ...

    async def read_lines(self, chunk: ClaimedChunk) -> Sequence[Line]:
        """Return the lines without a result."""

    async def put_results(self, results: Sequence[LineResult]) -> Sequence[bool]:
        """Commit results in one change. False: the chunk is lost, or the line has a result."""

    async def release(self, held: Sequence[tuple[ChunkKey, int]]) -> None:
        """Give chunks back, or end those whose lines all have results."""
