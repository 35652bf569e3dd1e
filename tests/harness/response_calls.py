"""Calls on stored responses, for tests: their messages, a store that is called directly, and an edge's stream."""

import asyncio
import sqlite3
import time
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import grpc

from penstock.auth.store.postgres.connection import connect
from penstock.auth.store.postgres.schema import migrate
from penstock.auth.store.responses import postgres, store
from penstock.auth.store.responses.locked import RESPONSE_BYTES
from penstock.auth.store.responses.opening import opened_responses
from penstock.auth.store.responses.operations import ResponseOperations
from penstock.chassis.database import postgres as database
from penstock.chassis.database.location import parse_location
from penstock.chassis.errors import PenstockError, error_from_failure
from penstock.mesh.v1 import responses_pb2 as pb
from penstock.v1.stream_pb2 import Heartbeat, Hello
from stores import PostgresStore, administer

DAY_S = 86_400.0
LEASE_S = 10.0
GIB = 1 << 30
COMPLETED = pb.RESPONSE_STATUS_COMPLETED
CANCELLED = pb.RESPONSE_STATUS_CANCELLED
FAILED = pb.RESPONSE_STATUS_FAILED
IN_PROGRESS = pb.RESPONSE_STATUS_IN_PROGRESS
HELD, CANCEL_REQUESTED, LOST = pb.LEASE_STATE_HELD, pb.LEASE_STATE_CANCEL_REQUESTED, pb.LEASE_STATE_LOST


def key(response_id="r1", tenant_id="acme"):
    return pb.ResponseKey(tenant_id=tenant_id, response_id=response_id)


def seconds(value):
    whole, nanos = divmod(round(value * 1e9), 10**9)
    return {"seconds": whole, "nanos": nanos}


def part(first_index, count, fill=b"t"):
    return pb.SealedTokens(first_index=first_index, count=count, sealed=fill * count)


def create(response_id="r1", *, tenant_id="acme", lease_s=LEASE_S, request=b"request", resume=b"resume", **fields):
    found = pb.CreateStored(key=key(response_id, tenant_id), request=request, resume=resume, **fields)
    found.lease.FromNanoseconds(round(lease_s * 1e9))
    return {"create": found}


def progress(response_id="r1", epoch=1, tokens=None, *, tenant_id="acme", release=False):
    return pb.StoredProgress(key=key(response_id, tenant_id), epoch=epoch, tokens=tokens, release=release)


def extend(*entries, lease_s=LEASE_S):
    found = pb.ExtendStored(progress=entries)
    found.lease.FromNanoseconds(round(lease_s * 1e9))
    return {"extend": found}


def finish(response_id="r1", epoch=1, status=COMPLETED, tokens=None, output=b"output", *, tenant_id="acme"):
    found = pb.FinishStored(key=key(response_id, tenant_id), epoch=epoch, status=status, tokens=tokens, output=output)
    return {"finish": found}


def read(response_id="r1", from_index=0, *, tenant_id="acme", state_only=False):
    return {"read": pb.ReadStored(key=key(response_id, tenant_id), from_index=from_index, state_only=state_only)}


def chain(response_id="r1", *, tenant_id="acme"):
    return {"chain": pb.ReadChain(key=key(response_id, tenant_id))}


def claim(response_id="", limit=10, *, tenant_id="acme", lease_s=LEASE_S):
    found = pb.ClaimStored(limit=limit)
    if response_id:
        found.key.CopyFrom(key(response_id, tenant_id))
    found.lease.FromNanoseconds(round(lease_s * 1e9))
    return {"claim": found}


def delete(response_id="r1", *, tenant_id="acme"):
    return {"delete": pb.DeleteStored(key=key(response_id, tenant_id))}


def cancel(response_id="r1", *, tenant_id="acme"):
    return {"cancel": pb.CancelStored(key=key(response_id, tenant_id))}


def outcome_of(result):
    """Return what a result holds; raise the error of a failure."""
    kind = result.WhichOneof("result")
    if kind == "failure":
        raise error_from_failure(result.failure)
    match kind:
        case "held":
            return result.held.epoch
        case "extended":
            return list(result.extended.states)
        case "responses":
            return list(result.responses.responses)
        case "done":
            return None


@dataclass(eq=False)
class ResponseClient:
    """Calls a store directly, as the stream of one edge does."""

    store: object
    instance_id: str = "edge-1"
    calls: int = 0
    unwritten: int = 0  # bytes of results that this edge has not read

    def unwritten_bytes(self):
        return self.unwritten

    async def __call__(self, operation):
        return await self.start(operation)

    def start(self, operation):
        """Perform a call; return the future of its outcome."""
        self.calls += 1
        done = asyncio.get_running_loop().create_future()

        def on_result(result):
            try:
                done.set_result(outcome_of(result))
            except PenstockError as error:
                done.set_exception(error)

        self.store.perform(pb.StoreCall(call_id=self.calls, **operation), self, on_result)
        return done


# Code that a process runs first, for the same purpose as `wait_longer`.
PATIENT = "import penstock.auth.store.responses.store as store; store.CALL_TIMEOUT_S = 60.0"


def wait_longer(monkeypatch):
    """Let a busy machine take its time: no call fails because of the limits of a product in use."""
    monkeypatch.setattr(store, "CALL_TIMEOUT_S", 60.0)
    monkeypatch.setattr(postgres, "STATEMENT_TIMEOUT_S", 60.0)
    monkeypatch.setitem(database._DEFAULTS, "connect_timeout", "60")  # it is no setting


@asynccontextmanager
async def response_client(location, clock=time.time, *, ttl=30 * DAY_S, bytes_per_tenant=GIB):
    """Open a store of responses, and yield a client of it."""
    operations = ResponseOperations(ttl, bytes_per_tenant)
    async with opened_responses(str(location), operations, clock=clock) as opened:
        watching = asyncio.create_task(opened.watch())
        yield ResponseClient(opened)
        watching.cancel()


_SIZES = """
    SELECT tenant_id, size,
        (SELECT coalesce(sum(length(sealed)), 0) FROM response_contents WHERE number = responses.number),
        (SELECT coalesce(sum(length(parts)), 0) FROM response_tokens WHERE number = responses.number)
    FROM responses
"""


@dataclass
class ResponseTables:
    """The tables of stored responses, which a test looks into and changes."""

    stored: object  # SqliteStore or PostgresStore

    def run(self, statement):
        if isinstance(self.stored, PostgresStore):
            return administer(self.stored.location, statement)
        with closing(sqlite3.connect(f"{self.stored.location}.responses")) as raw:
            rows = raw.execute(statement).fetchall()
            raw.commit()
            return rows

    def prepare(self):
        """Migrate a PostgreSQL database, as the store of the ledger does."""
        if isinstance(self.stored, PostgresStore):
            with closing(connect(parse_location(self.stored.location), "test")) as to_database:
                migrate(to_database)

    def pass_time(self, seconds):
        """Let all stored times be so many seconds earlier."""
        self.run(
            f"UPDATE responses SET created_at = created_at - {seconds}, expires_at = expires_at - {seconds},"
            f" lease_until = lease_until - {seconds}"
        )

    def counted(self):
        """Return (bytes, responses) of each tenant as they are counted, without tenants that have none."""
        rows = self.run("SELECT tenant_id, bytes, responses FROM response_usage")
        return {tenant: (size, count) for tenant, size, count in rows if size or count}

    def check_counts(self):
        """Check that the counts are those of the rows, at a moment without a change by the upkeep."""
        while True:
            counted = self.counted()
            present = self.present()
            if self.counted() == counted:  # else the upkeep has changed them meanwhile
                assert counted == present
                return counted

    def present(self):
        """Return (bytes, responses) of each tenant as the rows have them."""
        found = {}
        for tenant, size, contents, parts in self.run(_SIZES):
            assert size == RESPONSE_BYTES + contents + parts
            before = found.get(tenant, (0, 0))
            found[tenant] = (before[0] + size, before[1] + 1)
        return found

    def kinds(self):
        """Return the kinds of contents that are stored."""
        return sorted(kind for (kind,) in self.run("SELECT kind FROM response_contents"))

    def token_rows(self):
        ((count,),) = self.run("SELECT count(*) FROM response_tokens")
        return count


@dataclass
class ResponseStream:
    """One stream of an edge to the service."""

    call: object
    calls: int = 0
    results: dict[int, asyncio.Future] = field(default_factory=dict)  # by call id; those that were not awaited
    ended: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, operation):
        return await self.receive(await self.send(operation))

    async def send(self, operation):
        """Send a call; return its id."""
        self.calls += 1
        call_id = self.calls
        self.results[call_id] = asyncio.get_running_loop().create_future()
        await self.write(call=pb.StoreCall(call_id=call_id, **operation))
        return call_id

    async def receive(self, call_id):
        """Return the outcome of a call."""
        try:
            return outcome_of(await self.results[call_id])
        finally:
            del self.results[call_id]

    async def receive_end(self):
        """Return the reason of the peer's `end`."""
        return await self.ended

    async def write(self, **frame):
        async with self.writing:
            await self.call.write(pb.KeepRequest(**frame))

    async def beat(self):
        while True:
            await asyncio.sleep(0.3)
            await self.write(heartbeat=Heartbeat())

    async def read(self):
        """Pass on the frames of the peer. The end of the stream fails the calls that have no result."""
        error = EOFError("the stream has ended")
        try:
            while (frame := await self.call.read()) is not grpc.aio.EOF:
                for each in frame.more or (frame,):
                    match each.WhichOneof("frame"):
                        case "result":
                            self.results[each.result.call_id].set_result(each.result)
                        case "end":
                            self.ended.set_result(each.end.reason)
        except grpc.aio.AioRpcError as failed:
            error = failed
        for waiting in [*self.results.values(), self.ended]:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # it need not be awaited


@asynccontextmanager
async def response_stream(stub, instance_id="edge-1"):
    """A stream of an edge to the service, with heartbeats."""
    stream = ResponseStream(stub.Keep())
    await stream.write(hello=Hello(protocol=1, instance_id=instance_id, tier="edge", bundles=True))
    assert (await stream.call.read()).hello.tier == "auth"
    tasks = [asyncio.create_task(stream.beat()), asyncio.create_task(stream.read())]
    try:
        yield stream
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stream.call.cancel()


def ranges(response):
    return [(each.first_index, each.count) for each in response.tokens]


async def run_upkeep(call_store):
    """Run slices of the upkeep until nothing is left to do."""
    while await call_store.store.threads[0].run(lambda backend: backend.run_upkeep()):
        pass
