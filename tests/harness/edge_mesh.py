"""A real edge with scripted auth, queue and workers, each on a real grpc.aio server."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import grpc

from operators import admin_socket
from penstock.auth.responses.service import ResponseService
from penstock.chassis.channels import channel
from penstock.chassis.errors import PenstockError, Unauthenticated, Unavailable
from penstock.chassis.streams.link import accept_stream
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.edge.__main__ import edge
from penstock.edge.config import EdgeConfig
from penstock.edge.regions.client import no_regions
from penstock.mesh.model_key import model_key
from penstock.mesh.v1.admission_pb2 import AdmitResponse, Admitted, Identified, Identity, Rejected, Routes, Settled
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceServicer, add_AdmissionServiceServicer_to_server
from penstock.mesh.v1.queue_pb2 import Catalog, Leased, Queued, Shed, SubmitResponse, Withdrawn
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceServicer, add_QueueServiceServicer_to_server
from penstock.mesh.v1.responses_pb2_grpc import add_ResponseStoreServiceServicer_to_server
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from penstock.mesh.v1.worker_pb2 import (
    ExecuteResponse,
    GetModelCardResponse,
    ModelCard,
    RunCancelled,
    RunFinished,
    RunTimes,
    Step,
)
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceServicer, add_WorkerServiceServicer_to_server
from penstock.v1.admin_pb2 import GetSnapshotRequest
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, PRIORITY_STANDARD, GenerateRequest
from penstock.v1.inference_pb2_grpc import InferenceStub
from penstock.v1.route_pb2 import Route
from penstock.v1.stream_pb2 import Hello
from tiny_model import CHAT_TEMPLATE, EOS_ID, tiny_tokenizer

KEY = (("authorization", "Bearer good"),)
VOCABULARY = 304
CONTEXT = 512
TOKENIZER = tiny_tokenizer(VOCABULARY)
KV_BLOCKS = 7
TIMEOUT_S = 30.0  # bound of every wait


def token_at(index: int) -> int:
    """The token of the answer at `index`: every worker generates the alphabet, repeated."""
    return TOKENIZER.encode(chr(ord("a") + index % 26)).ids[0]


def text_of(count: int) -> str:
    return "".join(chr(ord("a") + index % 26) for index in range(count))


def vector_of(ids, size: int) -> list[float]:
    """The vector of a prompt from every worker."""
    return [float(ids[0]), float(len(ids)), *[1.0] * (size - 2)]


def hello(tier: str, instance_id: str) -> Hello:
    return Hello(protocol=HIGHEST_VERSION, instance_id=instance_id, tier=tier)


class FakeAuth(AdmissionServiceServicer):
    """Admits the bearer and the delegation `good`, and records reservations and settlements."""

    def __init__(self):
        self.reserves = []
        self.rejections: list[PenstockError] = []  # for the next reservations, although the key is valid
        self.settles = asyncio.Queue()
        self.open_reservations = set()
        self.confirms_settlements = True
        self.unconfirmed = []  # reservations that were settled without a confirmation
        self.peers = set()
        self.routes: list[Route] = []

    def send_routes(self, *routes):
        self.routes = list(routes)
        for peer in self.peers:
            peer.send(AdmitResponse(routes=Routes(routes=self.routes)))

    def confirm(self):
        """Confirm the settlements that were received before."""
        for peer in self.peers:
            for reservation_id in self.unconfirmed:
                peer.send(AdmitResponse(settled=Settled(reservation_id=reservation_id)))
        self.unconfirmed.clear()

    async def Admit(self, request_iterator, context):
        async with accept_stream(context, AdmitResponse, hello("auth", "a1")) as peer:
            self.peers.add(peer)
            if self.routes:
                peer.send(AdmitResponse(routes=Routes(routes=self.routes)))
            try:
                async for frame in peer:
                    if answer := self.answer(frame):
                        peer.send(answer)
            finally:
                self.peers.discard(peer)

    def answer(self, frame):
        kind = frame.WhichOneof("frame")
        if kind == "settle":
            self.open_reservations.discard(frame.settle.reservation_id)
            self.settles.put_nowait(frame.settle)
            if not self.confirms_settlements:
                self.unconfirmed.append(frame.settle.reservation_id)
                return None
            return AdmitResponse(settled=Settled(reservation_id=frame.settle.reservation_id))
        request = frame.identify if kind == "identify" else frame.reserve
        if "good" not in (request.credential.bearer, request.credential.delegation.decode()):
            error = Unauthenticated("no such key", reason="KEY_UNKNOWN")
            return AdmitResponse(rejected=Rejected(request_id=request.request_id, failure=error.failure()))
        identity = Identity(
            tenant_id="acme", priority=PRIORITY_STANDARD, weight=1.0, cache_salt=b"s" * 16, key_id="key-1"
        )
        if kind == "identify":
            return AdmitResponse(identified=Identified(request_id=request.request_id, identity=identity))
        if self.rejections:
            failure = self.rejections.pop(0).failure()
            rejected = Rejected(request_id=request.request_id, failure=failure, tenant_id="acme", key_id="key-1")
            return AdmitResponse(rejected=rejected)
        self.reserves.append(request)
        self.open_reservations.add(f"r-{request.request_id}")
        admitted = Admitted(request_id=request.request_id, reservation_id=f"r-{request.request_id}", identity=identity)
        return AdmitResponse(admitted=admitted)


class FakeQueue(QueueServiceServicer):
    """Leases every ticket to the first worker it may have; `sheds` holds errors for the next tickets."""

    def __init__(self, workers):
        self.workers = workers
        self.tickets = []
        self.withdrawn = asyncio.Queue()
        self.withdrawals = []
        self.sheds: list[PenstockError] = []
        self.shed_windows = []  # rejection windows of each shed
        self.queued_windows = []  # rejection windows of each queued ticket
        self.holds_tickets = False  # tickets stay queued
        self.held_tickets = asyncio.Queue()
        self.held_requests = asyncio.Queue()  # reports of requests that the edge holds, by model
        self.peers = set()

    async def Submit(self, request_iterator, context):
        async with accept_stream(context, SubmitResponse, hello("queue", "q1")) as peer:
            self.peers.add(peer)
            peer.send(self.catalog())
            try:
                async for frame in peer:
                    self.on_frame(peer, frame)
            finally:
                self.peers.discard(peer)

    def catalog(self):
        by_version = {}
        for each in self.workers:
            by_version.setdefault((each.model, each.digest), []).append(each)
        entries = [
            CatalogEntry(model=model, card_digest=digest, worker_address=of[0].address, workers_hint=len(of))
            for (model, digest), of in by_version.items()
        ]
        return SubmitResponse(catalog=Catalog(entries=entries))

    def send_catalog(self):
        for peer in self.peers:
            peer.send(self.catalog())

    def on_frame(self, peer, frame):
        if frame.WhichOneof("frame") == "held_requests":
            self.held_requests.put_nowait({each.model: each.requests for each in frame.held_requests.models})
        for ticket in frame.enqueue.tickets:
            self.tickets.append(ticket)
            if self.sheds:
                peer.send(self.shed(ticket, self.sheds.pop(0)))
                continue
            peer.send(SubmitResponse(queued=Queued(ticket_id=ticket.ticket_id, rejection_windows=self.queued_windows)))
            if self.holds_tickets:
                self.held_tickets.put_nowait(ticket)
            else:
                peer.send(self.lease(ticket))
        if frame.withdraw.ticket_ids:
            self.withdrawals.append(frame.withdraw)
            self.withdrawn.put_nowait(list(frame.withdraw.ticket_ids))
            peer.send(SubmitResponse(withdrawn=Withdrawn(ticket_ids=frame.withdraw.ticket_ids)))

    def reject(self, ticket, reason):
        """Shed a ticket that is queued."""
        for peer in self.peers:
            peer.send(self.shed(ticket, Unavailable("shed by the test", reason=reason, retry_after=1.0)))

    def shed(self, ticket, error):
        return SubmitResponse(
            shed=Shed(ticket_id=ticket.ticket_id, failure=error.failure(), rejection_windows=self.shed_windows)
        )

    def lease(self, ticket):
        served = [each for each in self.workers if ticket.model == model_key(each.model, each.digest)]
        worker = next(each for each in served if each.name not in ticket.avoid_workers)
        lease = Lease(
            lease_id=f"l-{ticket.ticket_id}-{ticket.attempt}",
            ticket_id=ticket.ticket_id,
            worker_id=worker.name,
            worker_address=worker.address,
            ttl=timedelta(seconds=10),
            attempt=ticket.attempt,
            model=ticket.model,
        )
        return SubmitResponse(leased=Leased(lease=lease))


@dataclass(eq=False)
class FakeWorker(WorkerServiceServicer):
    """Generates the alphabet at once, or up to `pause_at_index`."""

    name: str
    address: str = ""
    digest: str = "d1"
    model: str = "tiny"
    bos_token_id: int | None = None  # of the card: another tokenization
    pause_at_index: int | None = None
    sends_one_frame: bool = False  # all tokens in one frame
    starts: list = field(default_factory=list)
    paused: asyncio.Queue = field(default_factory=asyncio.Queue)
    cancels: asyncio.Queue = field(default_factory=asyncio.Queue)
    runs: dict = field(default_factory=dict)  # by handle: peer, start, tokens made
    peers: set = field(default_factory=set)
    embedding_size: int = 0  # of the card
    cuts_embeddings: bool = False  # sends vectors that lack a number

    async def GetModelCard(self, request, context):
        card = ModelCard(
            name=self.model,
            digest=self.digest,
            bos_token_id=self.bos_token_id,
            context_length=CONTEXT,
            vocabulary_size=VOCABULARY,
            eos_token_ids=[EOS_ID],
            chat_template=CHAT_TEMPLATE,
            tokenizer_json_zlib=zlib.compress(TOKENIZER.to_str().encode()),
            block_size=16,
            embedding_size=self.embedding_size,
        )
        return GetModelCardResponse(card=card)

    async def Execute(self, request_iterator, context):
        async with accept_stream(context, ExecuteResponse, hello("worker", self.name)) as peer:
            self.peers.add(peer)
            try:
                async for frame in peer:
                    self.on_frame(peer, frame)
            finally:
                self.peers.discard(peer)

    def on_frame(self, peer, frame):
        kind = frame.WhichOneof("frame")
        if kind == "start":
            self.starts.append(frame.start)
            self.runs[frame.start.handle] = [peer, frame.start, 0]
            if frame.start.embeds:
                self.embed(frame.start.handle, pauses=self.pause_at_index == 0)
                return
            self.send_tokens(frame.start.handle, self.pause_at_index)
        elif kind == "cancel":
            self.cancels.put_nowait(frame.cancel.handle)
            if frame.cancel.handle in self.runs:
                _, _, made = self.runs.pop(frame.cancel.handle)
                stopped = RunCancelled(
                    handle=frame.cancel.handle, output_tokens=made, kv_blocks_freed=KV_BLOCKS, step=made
                )
                peer.send(ExecuteResponse(cancelled=stopped))

    def embed(self, handle, *, pauses=False):
        """Finish a run with the vector of its prompt, or leave it unfinished."""
        if pauses:
            self.paused.put_nowait(handle)
            return
        peer, start, _ = self.runs.pop(handle)
        vector = vector_of(start.token_ids, self.embedding_size)
        finished = RunFinished(
            handle=handle,
            reason=FINISH_REASON_STOP,
            times=RunTimes(prefill=timedelta(microseconds=1)),
            embedding=vector[1:] if self.cuts_embeddings else vector,
        )
        peer.send(ExecuteResponse(finished=finished))

    def send_tokens(self, handle, pause_at=None):
        """Send tokens up to index `pause_at`, or to the end of the run."""
        peer, start, made = self.runs[handle]
        end = start.emitted + start.max_output_tokens
        indexes = range(start.emitted + made, end if pause_at is None else min(end, pause_at))
        for part in [indexes] if self.sends_one_frame else [[index] for index in indexes]:
            step = Step(handles=[handle] * len(part), token_ids=map(token_at, part), indexes=part, step=made + 1)
            if start.sampling.logprobs:
                step.logprobs.extend([-0.5] * len(part))
            for index in part:
                others = range(start.sampling.top_logprobs)
                step.top_token_ids.extend(token_at(index + other) for other in others)
                step.top_logprobs.extend(-0.5 - other for other in others)
            peer.send(ExecuteResponse(step=step))
            made += len(part)
        self.runs[handle][2] = made
        if made < start.max_output_tokens:
            self.paused.put_nowait(handle)
            return
        del self.runs[handle]
        times = RunTimes(prefill=timedelta(microseconds=1))
        finished = RunFinished(handle=handle, reason=FINISH_REASON_LENGTH, output_tokens=made, times=times)
        peer.send(ExecuteResponse(finished=finished))

    def cut_streams(self):
        """Close every stream without `end`."""
        self.runs.clear()
        for peer in list(self.peers):
            peer.close("killed")


@dataclass
class EdgeMesh:
    auth: FakeAuth
    queues: list[FakeQueue]
    workers: list[FakeWorker]
    address: str
    inference: InferenceStub
    admin: AdminStub
    drain: Callable[[], Awaitable[None]]  # leaves the edge's block; once

    @property
    def queue(self):
        return self.queues[0]

    def generate(self, text="hi", metadata=KEY, **fields):
        return self.inference.Generate(GenerateRequest(text=text, **fields), metadata=metadata, timeout=TIMEOUT_S)

    async def figures(self):
        return dict((await self.admin.GetSnapshot(GetSnapshotRequest())).snapshot.figures)


def served(add, servicer):
    return served_together({add: servicer})


@asynccontextmanager
async def served_together(servicers) -> AsyncIterator[str]:
    """Serve each servicer on one port; `servicers` by the function that adds them."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    for add, servicer in servicers.items():
        add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def edge_mesh(
    workers=1, shards=1, fakes=(), responses=None, allowed_regions=no_regions, **settings
) -> AsyncIterator[EdgeMesh]:
    """`responses`: a store of responses, which auth serves."""
    async with AsyncExitStack() as stack:
        fakes = list(fakes) or [FakeWorker(f"w{number + 1}") for number in range(workers)]
        for fake in fakes:
            fake.address = await stack.enter_async_context(served(add_WorkerServiceServicer_to_server, fake))
        auth, queues = FakeAuth(), [FakeQueue(list(fakes)) for _ in range(shards)]
        adding = {add_AdmissionServiceServicer_to_server: auth}
        if responses:
            adding[add_ResponseStoreServiceServicer_to_server] = ResponseService(responses, hello("auth", "a1"))
        auths = await stack.enter_async_context(served_together(adding))
        at = [await stack.enter_async_context(served(add_QueueServiceServicer_to_server, queue)) for queue in queues]
        own = {"listen": "127.0.0.1:0", "auths": (auths,), "queues": tuple(at), "instance_id": "e1", "drain_grace": 0.0}
        own["admin_listen"] = stack.enter_context(admin_socket())
        serving = await stack.enter_async_context(AsyncExitStack())
        server = await serving.enter_async_context(
            edge(EdgeConfig(**{**own, **settings}), allowed_regions=allowed_regions)
        )
        to_edge = await stack.enter_async_context(channel(server.address))
        to_admin = await stack.enter_async_context(channel(server.admin_address))
        inference, admin = InferenceStub(to_edge), AdminStub(to_admin)
        yield EdgeMesh(auth, queues, fakes, server.address, inference, admin, serving.aclose)
