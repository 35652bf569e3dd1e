"""A store of chunks in memory, and edges that answer each line at once, for the runner of batches."""

import asyncio
import math
from collections import Counter

import orjson

from penstock.batch.jobs.chunks import ChunkKey, ChunkState, Claim, ClaimedChunk, Line
from penstock.batch.store.errors import StoreUnavailable
from penstock.batch.work_signal import WorkSignal
from penstock.mesh.v1.batch_pb2 import LINE_VERDICT_ANSWERED, LineEnded

ENDPOINT = "/v1/embeddings"


def chunk_of(batch_id, lines, *, first=0, content=None):
    """Return a chunk under its first lease, and its lines: calls, or `content` each."""
    body = {"method": "POST", "url": ENDPOINT, "body": {}}
    claimed = ClaimedChunk(ChunkKey(batch_id, first), 1, lines, "acme", "k", b"d", ENDPOINT, 1_000.0, 900.0)
    numbers = range(first, first + lines)
    return claimed, [Line(each, content or orjson.dumps(body | {"custom_id": f"c{each}"})) for each in numbers]


class ChunkMemory:
    """Implements `ChunkStore`. `commits` counts results by line, those that were refused, too."""

    def __init__(self, chunks):
        self.free = {chunk.key: (chunk, lines) for chunk, lines in chunks}
        self.held = {}
        self.chunks_due = WorkSignal()
        self.next_lease_s = math.inf
        self.stored = {}  # by chunk and number
        self.commits = Counter()
        self.released = []
        self.state = ChunkState.HELD
        self.commit_gate = asyncio.Event()
        self.commit_gate.set()
        self.claims = 0
        self.groups = []  # of results
        self.is_away = False
        self.done = []  # names of the calls that did not fail
        self.claim_gate = asyncio.Event()
        self.claim_gate.set()

    async def claim(self, replica, limit, lease_s):
        self.claims += 1
        await self.claim_gate.wait()
        self._take_call("claim")
        keys = list(self.free)[:limit]
        self.held |= {key: self.free.pop(key) for key in keys}
        return Claim([self.held[key][0] for key in keys], self.next_lease_s)

    async def renew(self, held, lease_s):
        self._take_call("renew")
        return [self.state for _ in held]

    async def read_lines(self, chunk):
        return [line for line in self.held[chunk.key][1] if (chunk.key, line.number) not in self.stored]

    async def put_results(self, results):
        await self.commit_gate.wait()
        self._take_call("put_results")
        self.groups.append(results)
        self.commits.update((each.key, each.number) for each in results)
        new = [(each.key, each.number) not in self.stored for each in results]
        self.stored |= {(each.key, each.number): each for each in results}
        return new

    async def release(self, held):
        self.released += [key for key, _ in held]

    def _take_call(self, name):
        if self.is_away:
            raise StoreUnavailable("it is away")
        self.done.append(name)


class FakeEdges:
    """In the place of `EdgeLinks`: one edge, which answers a line at once if `is_answering`."""

    links_up = 1

    def __init__(self):
        self.is_answering = True
        self.started = []
        self.stopped = []
        self.looks = 0  # for lines that may start

    def next_edge(self):
        self.looks += 1
        return "edge"

    def start(self, line, now):
        self.started.append(line)
        if self.is_answering:
            asyncio.get_running_loop().call_soon(self.answer, line.handle)
        return True

    def answer(self, handle):
        self.on_running("edge", handle)
        self.on_ended("edge", LineEnded(number=handle, verdict=LINE_VERDICT_ANSWERED, status=200, body=b"{}"))

    def stop(self, line):
        self.stopped.append(line)
