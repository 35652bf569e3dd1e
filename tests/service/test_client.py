"""The SDK against real servers whose edges do what a test says: cut, shed, end, fall silent."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from penstock.chassis.errors import (
    InvalidArgument,
    NotFound,
    Overloaded,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
)
from penstock.chassis.streams import accepted
from penstock.client import Cancelled, Client, DeadlineExceeded, IndexGap, RetryPolicy, endpoints, rotation
from penstock.v1 import inference_pb2 as pb
from penstock.v1.inference_pb2 import GenerateRequest, GenerateResponse, SessionResponse
from penstock.v1.stream_pb2 import End, Hello
from scripted import inference

WORDS = ["Once", " upon", " a", " time", " there", " was"]
SEED = 42
HASTY = RetryPolicy(backoff=(0.001, 0.002))


class Cut(Exception):
    """What an edge that dies looks like in the middle of an answer."""


@dataclass
class Edge:
    """Answers each request with WORDS, one token each; `script` says what happens at its nth attempt."""

    script: list = field(default_factory=list)  # number of tokens before the cut, or an error to refuse with
    requests: list = field(default_factory=list)
    metadata: list = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def step(self):
        return self.script.pop(0) if self.script else len(WORDS) + 1

    async def generate(self, request: GenerateRequest, context):
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        step = self.step()
        if isinstance(step, Exception):
            raise step
        start = len(request.resume.token_ids)
        try:
            yield GenerateResponse(accepted=accepted_of(request))
            for index in range(start, len(WORDS)):
                if index - start >= step:
                    raise Unavailable("this edge drains", reason="DRAINING", retry_after=0.001)
                yield GenerateResponse(delta=delta_of(index))
            yield GenerateResponse(finished=finished_of(start))
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise


def accepted_of(request) -> pb.Accepted:
    return pb.Accepted(request_id="r-1", model="m", prompt_tokens=3, max_output_tokens=6, seed=SEED)


def delta_of(index) -> pb.Delta:
    return pb.Delta(text=WORDS[index], token_ids=[100 + index], first_index=index)


def finished_of(start) -> pb.Finished:
    usage = pb.Usage(prompt_tokens=3, output_tokens=len(WORDS) - start)
    return pb.Finished(reason=pb.FINISH_REASON_LENGTH, usage=usage)


@asynccontextmanager
async def client_of(*edges, retries=HASTY, **methods):
    """A client of one server for each of `edges`."""
    async with AsyncExitStack() as stack:
        targets = []
        for edge in edges:
            served = {"Generate": edge.generate} if isinstance(edge, Edge) else {"Generate": edge}
            _, server = await stack.enter_async_context(inference(**served, **methods))
            targets.append(server.address)
        yield await stack.enter_async_context(Client(*targets, api_key="pk_test", retries=retries))


async def test_an_answer_streams_piece_by_piece():
    edge = Edge()
    async with client_of(edge) as client:
        async with client.generate("Hello", model="m", max_output_tokens=6, temperature=0.0) as answer:
            pieces = [piece async for piece in answer]
        assert [piece.text for piece in pieces] == WORDS
        assert [piece.first_index for piece in pieces] == list(range(6))
        assert answer.text == "".join(WORDS)
        assert answer.accepted.request_id == "r-1"
        assert answer.finished.usage.output_tokens == 6
    [request] = edge.requests
    assert (request.text, request.model, request.max_output_tokens) == ("Hello", "m", 6)
    assert edge.metadata[0]["authorization"] == "Bearer pk_test"


async def test_an_answer_can_be_read_without_a_block_or_whole():
    async with client_of(Edge()) as client:
        assert [piece.text async for piece in client.generate("Hello")] == WORDS
        assert await client.complete("Hello") == "".join(WORDS)


async def test_nothing_is_asked_before_the_answer_is_read():
    edge = Edge()
    async with client_of(edge) as client, client.generate("Hello") as answer:
        with pytest.raises(RuntimeError, match="read the answer"):
            answer.accepted
        with pytest.raises(RuntimeError, match="not finished"):
            answer.finished
    assert edge.requests == []


async def test_leaving_the_block_cancels_on_the_edge():
    edge = Edge()

    async def endless(request, context):
        yield GenerateResponse(accepted=accepted_of(request))
        yield GenerateResponse(delta=delta_of(0))
        try:
            await asyncio.Event().wait()
        finally:
            edge.cancelled.set()

    async with client_of(endless) as client:
        async with client.generate("Hello") as answer:
            async for _ in answer:
                break
        async with asyncio.timeout(5):
            await edge.cancelled.wait()
        assert answer.token_ids == [100]


async def test_cancelling_whoever_reads_cancels_on_the_edge():
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(request, context):
        yield GenerateResponse(accepted=accepted_of(request))
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with client_of(endless) as client:
        reading = asyncio.create_task(client.complete("Hello"))
        await started.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        async with asyncio.timeout(5):
            await cancelled.wait()


async def test_an_answer_that_was_cut_goes_on_where_it_was_with_the_same_seed():
    edge = Edge(script=[2, 3])
    async with client_of(edge) as client, client.generate("Hello") as answer:
        assert [piece.text async for piece in answer] == WORDS
        assert answer.attempts == 3
    first, second, third = edge.requests
    assert not first.sampling.HasField("seed")
    assert list(second.resume.token_ids) == [100, 101]
    assert list(third.resume.token_ids) == [100, 101, 102, 103, 104]
    for later in (second, third):
        assert (later.sampling.seed, later.max_output_tokens, later.model) == (SEED, 6, "m")
        assert later.request_id == "r-1"


async def test_an_answer_goes_on_at_another_edge_when_its_own_dies():
    other, served = Edge(), asyncio.Event()

    async def dying(request, context):
        yield GenerateResponse(accepted=accepted_of(request))
        yield GenerateResponse(delta=delta_of(0))
        served.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        doomed = await stack.enter_async_context(AsyncExitStack())
        _, first = await doomed.enter_async_context(inference(Generate=dying))
        _, second = await stack.enter_async_context(inference(Generate=other.generate))
        client = await stack.enter_async_context(Client(first.address, second.address, retries=HASTY))
        async with client.generate("Hello") as answer:
            texts = []
            async for piece in answer:
                texts.append(piece.text)
                if not other.requests:
                    await served.wait()
                    await first.core.stop(None)
        assert texts == WORDS
    assert list(other.requests[0].resume.token_ids) == [100]


async def test_tokens_that_come_again_are_dropped():
    attempts = []

    async def forgetful(request, context):
        attempts.append(request)
        yield GenerateResponse(accepted=accepted_of(request))
        for index in range(3 if len(attempts) == 1 else len(WORDS)):
            yield GenerateResponse(delta=delta_of(index))
        if len(attempts) == 1:
            raise Unavailable("this edge drains", reason="DRAINING", retry_after=0.001)
        yield GenerateResponse(finished=finished_of(3))

    async with client_of(forgetful) as client:
        assert await client.complete("Hello") == "".join(WORDS)
    assert len(attempts) == 2


async def test_tokens_that_are_missing_are_an_error_and_not_a_wrong_answer():
    cancelled = asyncio.Event()

    async def leaping(request, context):
        try:
            yield GenerateResponse(accepted=accepted_of(request))
            yield GenerateResponse(delta=delta_of(0))
            yield GenerateResponse(delta=delta_of(2))
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with client_of(leaping) as client:
        with pytest.raises(IndexGap, match="token 2 where 1 was next"):
            await client.complete("Hello")
        async with asyncio.timeout(5):
            await cancelled.wait()


async def test_an_answer_without_an_end_is_not_taken_for_one():
    attempts = []

    async def unfinished(request, context):
        attempts.append(request)
        yield GenerateResponse(accepted=accepted_of(request))

    async with client_of(unfinished, retries=RetryPolicy(max_attempts=3, backoff=(0.001, 0.002))) as client:
        with pytest.raises(Unavailable, match="without finishing"):
            await client.complete("Hello")
    assert len(attempts) == 3


async def test_who_is_shed_comes_back_when_told_and_not_before():
    edge = Edge(script=[Overloaded("full", reason="QUEUE_FULL", retry_after=0.05)])
    async with client_of(edge) as client, client.generate("Hello") as answer:
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await answer.read() == "".join(WORDS)
        assert loop.time() - started >= 0.05
        assert answer.attempts == 2


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unauthenticated("no", reason="KEY_UNKNOWN"), Unauthenticated),
        (InvalidArgument("too long", field="input", reason="PROMPT_TOO_LONG"), InvalidArgument),
        (NotFound("no such model", reason="MODEL_UNKNOWN"), NotFound),
        (QuotaExceeded("limit", retry_after=60.0), QuotaExceeded),
        (Overloaded("full", reason="QUEUE_FULL", retry_after=30.0), Overloaded),
    ],
)
async def test_errors_come_typed_with_reason_and_time_and_at_once(error, kind):
    edge = Edge(script=[error])
    async with client_of(edge) as client:
        with pytest.raises(kind) as failure:
            await client.complete("Hello")
    assert (failure.value.reason, failure.value.retry_after) == (error.reason, error.retry_after)
    assert len(edge.requests) == 1


async def test_an_overload_is_not_kept_alive_by_retries():
    """Twenty requests of one client against an edge that sheds them all cost four retries, not eighty."""
    edge = Edge(script=[Overloaded("full", retry_after=0.001)] * 100)
    async with client_of(edge) as client:
        answers = await asyncio.gather(*(client.complete("Hello") for _ in range(20)), return_exceptions=True)
    assert all(isinstance(each, Overloaded) for each in answers)
    assert len(edge.requests) == 24


@pytest.mark.parametrize("way", ["complete", "count_tokens"])
async def test_what_succeeds_brings_the_budget_for_retries_back(way):
    edge = Edge(script=[Overloaded("full", retry_after=0.001)] * 20)

    async def count(request, context):
        return pb.CountTokensResponse()

    async with client_of(edge, CountTokens=count) as client:
        await asyncio.gather(*(client.complete("Hello") for _ in range(20)), return_exceptions=True)
        edge.script = [Overloaded("full", retry_after=0.001)]
        with pytest.raises(Overloaded):
            await client.complete("Hello")
        for _ in range(70):
            await getattr(client, way)("Hello")
        edge.script = [Overloaded("full", retry_after=0.001)]
        assert await client.complete("Hello") == "".join(WORDS)


def connections_tried(monkeypatch):
    """The channels that are waited for, each time they are."""
    tried, is_ready = [], endpoints._is_ready

    def noted(channel, **options):
        tried.append(channel)
        return is_ready(channel, **options)

    monkeypatch.setattr(endpoints, "_is_ready", noted)
    return tried


async def test_where_nobody_listens_all_targets_are_asked_again_after_a_pause_rather_than_in_circles(monkeypatch):
    monkeypatch.setattr(rotation, "COOLDOWN", 60.0)
    monkeypatch.setattr(endpoints, "PAUSE", 0.1)
    tried = connections_tried(monkeypatch)
    async with inference() as (_, one), inference() as (_, other):
        nobodies = (one.address, other.address)
    async with Client(*nobodies, retries=RetryPolicy(max_attempts=1, patience=0.2)) as client:
        with pytest.raises(Unavailable, match=nobodies[0]):
            await client.complete("Hello")
    assert len(set(tried)) == 2
    assert len(tried) <= 2 + 0.2 / 0.1, "no oftener than every pause"


async def test_a_target_that_failed_of_late_and_is_back_is_found_while_the_last_good_one_is_away(monkeypatch):
    monkeypatch.setattr(rotation, "COOLDOWN", 60.0)
    monkeypatch.setattr(endpoints, "CONNECT", 1_000.0)  # who waits for the one that is away waits for ever
    edge = Edge()
    async with inference() as (_, away):
        nobody = away.address
    async with inference(Generate=edge.generate) as (_, back), Client(nobody, back.address) as client:
        for each in client._endpoints._open.values():  # as if both had just failed
            client._endpoints.failed(each)
        assert await client.complete("Hello")


async def test_a_target_where_nobody_listens_is_left_out_for_a_while(monkeypatch):
    monkeypatch.setattr(rotation, "COOLDOWN", 60.0)
    monkeypatch.setattr(endpoints, "CONNECT", 1_000.0)  # a refusal is enough: nothing is waited for
    tried = connections_tried(monkeypatch)
    async with inference() as (_, server):
        nobody = server.address
    edge = Edge()
    async with inference(Generate=edge.generate) as (_, server), Client(nobody, server.address) as client:
        for _ in range(3):
            await client.complete("Hello")
    assert [tried.count(each) for each in dict.fromkeys(tried)] == [1, 3]


async def test_an_edge_that_says_it_goes_is_left_out_for_a_while(monkeypatch):
    monkeypatch.setattr(rotation, "COOLDOWN", 60.0)
    edges = [Edge(script=[Unavailable("this edge drains", reason="DRAINING", retry_after=0.001)]), Edge()]
    async with client_of(*edges) as client:
        for _ in range(4):
            await client.complete("Hello")
    assert [len(edge.requests) for edge in edges] == [1, 4]


async def test_a_client_waits_for_an_edge_that_is_still_starting():
    async with inference() as (_, server):
        address = server.address
    async with Client(address, retries=HASTY) as client:
        reading = asyncio.create_task(client.complete("Hello"))
        await asyncio.sleep(0)
        async with inference_at(address, Generate=Edge().generate):
            assert await reading == "".join(WORDS)


async def test_no_edge_within_the_patience_is_an_error_that_names_the_targets():
    async with inference() as (_, server):
        address = server.address
    async with Client(address, retries=RetryPolicy(max_attempts=1, patience=0.05)) as client:
        with pytest.raises(Unavailable, match=address) as failure:
            await client.complete("Hello")
    assert failure.value.reason == "CONNECTION_LOST"


async def test_a_timeout_bounds_all_attempts_together():
    edge = Edge(script=[Overloaded("full", retry_after=0.2)] * 100)
    async with client_of(edge) as client:
        with pytest.raises(DeadlineExceeded, match="full"):
            await client.complete("Hello", timeout=0.3)
    assert [0 < each.timeout.ToMilliseconds() <= 300 for each in edge.requests] == [True, True]
    assert edge.requests[1].timeout.ToMilliseconds() <= 100


async def test_requests_spread_over_the_targets():
    edges = [Edge(), Edge(), Edge()]
    async with client_of(*edges) as client:
        for _ in range(6):
            await client.complete("Hello")
    assert [len(edge.requests) for edge in edges] == [2, 2, 2]


async def test_tokens_are_counted_and_models_listed():
    asked, failures = [], [Unavailable("going", reason="DRAINING", retry_after=0.001)]

    async def count(request, context):
        asked.append(request)
        return pb.CountTokensResponse(prompt_tokens=7, context_length=99, token_ids=[1, 2])

    async def models(request, context):
        if failures:
            raise failures.pop()
        return pb.ListModelsResponse(models=[pb.Model(name="m")])

    async with client_of(Edge(), CountTokens=count, ListModels=models) as client:
        counted = await client.count_tokens([{"role": "user", "content": "Hi"}], model="m", include_token_ids=True)
        assert (counted.prompt_tokens, counted.context_length) == (7, 99)
        assert (asked[0].chat.messages[0].content, asked[0].include_token_ids) == ("Hi", True)
        assert [each.name for each in await client.list_models()] == ["m"]


async def test_a_client_that_is_not_open_says_how_to_open_it():
    with pytest.raises(RuntimeError, match="async with"):
        await Client("127.0.0.1:1").complete("Hello")
    with pytest.raises(ValueError, match="target"):
        Client()


@dataclass
class SessionEdge:
    """Holds one session at a time; a test says what it answers."""

    peers: list = field(default_factory=list)
    frames: asyncio.Queue = field(default_factory=asyncio.Queue)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def session(self, request_iterator, context):
        async with accepted(context, SessionResponse, Hello(protocol=1, instance_id="edge-1", tier="edge")) as peer:
            self.peers.append(peer)
            async for frame in peer:
                self.frames.put_nowait(frame)
            self.left.set()

    async def next(self, kind):
        async with asyncio.timeout(5):
            frame = await self.frames.get()
        assert frame.WhichOneof("frame") == kind
        return getattr(frame, kind)

    def send(self, **frame):
        assert self.peers[-1].send(SessionResponse(**frame))

    def accept(self, asked):
        self.send(accepted=pb.SessionAccepted(handle=asked.handle, accepted=accepted_of(asked.request)))

    def step(self, *parts):
        """One step of many requests: (handle, index of its token)."""
        self.send(
            step=pb.SessionStep(
                handles=[handle for handle, _ in parts],
                texts=[WORDS[index] for _, index in parts],
                first_indexes=[index for _, index in parts],
                counts=[1] * len(parts),
                token_ids=[100 + index for _, index in parts],
            )
        )

    def finish(self, handle, start=0):
        self.send(finished=pb.SessionFinished(handle=handle, finished=finished_of(start)))


@asynccontextmanager
async def session_of(edge):
    async with (
        inference(Session=edge.session) as (_, server),
        Client(server.address, retries=HASTY) as client,
        client.session() as session,
    ):
        yield session


async def test_a_session_carries_many_requests_on_one_stream():
    edge = SessionEdge()
    async with session_of(edge) as session:
        reading = [asyncio.create_task(session.complete(f"prompt {number}")) for number in range(3)]
        asked = [await edge.next("generate") for _ in reading]
        for each in asked:
            edge.accept(each)
        for index in range(len(WORDS)):
            edge.step(*((each.handle, index) for each in asked))
        for each in asked:
            edge.finish(each.handle)
        assert await asyncio.gather(*reading) == ["".join(WORDS)] * 3
    assert len(edge.peers) == 1
    assert sorted(each.request.text for each in asked) == ["prompt 0", "prompt 1", "prompt 2"]


async def test_a_request_of_a_session_fails_alone():
    edge = SessionEdge()
    async with session_of(edge) as session:
        good, bad = asyncio.create_task(session.complete("good")), asyncio.create_task(session.complete("bad"))
        asked = {each.request.text: each for each in [await edge.next("generate"), await edge.next("generate")]}
        failure = NotFound("no such model", reason="MODEL_UNKNOWN").failure()
        edge.send(failed=pb.SessionFailed(handle=asked["bad"].handle, failure=failure))
        with pytest.raises(NotFound) as told:
            await bad
        assert told.value.reason == "MODEL_UNKNOWN"
        edge.accept(asked["good"])
        for index in range(len(WORDS)):
            edge.step((asked["good"].handle, index))
        edge.finish(asked["good"].handle)
        assert await good == "".join(WORDS)


async def test_leaving_an_answer_of_a_session_cancels_it_alone():
    edge = SessionEdge()
    async with session_of(edge) as session:
        async with session.generate("Hello") as answer:
            first = asyncio.create_task(anext(aiter(answer)))
            asked = await edge.next("generate")
            edge.accept(asked)
            edge.step((asked.handle, 0))
            assert (await first).text == WORDS[0]
        assert (await edge.next("cancel")).handle == asked.handle
        edge.step((asked.handle, 1))  # was on its way already
        reading = asyncio.create_task(session.complete("again"))
        again = await edge.next("generate")
        assert again.handle != asked.handle
        edge.accept(again)
        for index in range(len(WORDS)):
            edge.step((again.handle, index))
        edge.finish(again.handle)
        assert await reading == "".join(WORDS)


@pytest.mark.parametrize("how", ["ended", "cut"])
async def test_answers_of_a_session_go_on_when_their_edge_does_not(how):
    edge = SessionEdge()
    async with session_of(edge) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        asked = await edge.next("generate")
        edge.accept(asked)
        edge.step((asked.handle, 0))
        edge.step((asked.handle, 1))
        if how == "ended":
            edge.send(end=End(reason="drained"))
        else:
            await edge.peers[-1].flush()
            edge.peers[-1].close("killed")
        again = await edge.next("generate")
        assert list(again.request.resume.token_ids) == [100, 101]
        assert again.request.sampling.seed == SEED
        edge.accept(again)
        for index in range(2, len(WORDS)):
            edge.step((again.handle, index))
        edge.finish(again.handle, start=2)
        assert await reading == "".join(WORDS)
    assert len(edge.peers) == 2


@asynccontextmanager
async def session_over(*edges):
    """A session that may move between `edges`; the first of them takes it first."""
    async with AsyncExitStack() as stack:
        served = [await stack.enter_async_context(inference(Session=edge.session)) for edge in edges]
        targets = [server.address for _, server in served]
        client = await stack.enter_async_context(Client(*targets, retries=HASTY))
        yield await stack.enter_async_context(client.session())


def refusal(asked, reason, retry_after=0.01):
    failure = Unavailable("not here", reason=reason, retry_after=retry_after).failure()
    return {"failed": pb.SessionFailed(handle=asked.handle, failure=failure)}


async def answer_on(edge, asked, start=0):
    for index in range(start, len(WORDS)):
        edge.step((asked.handle, index))
    edge.finish(asked.handle, start=start)


async def test_a_session_leaves_an_edge_that_drains_and_what_runs_there_ends_there():
    old, new = SessionEdge(), SessionEdge()
    async with session_over(old, new) as session:
        running = asyncio.create_task(session.complete("running"))
        first = await old.next("generate")
        old.accept(first)
        answer = session.generate("next")
        reading = asyncio.create_task(answer.read())
        old.send(**refusal(await old.next("generate"), "DRAINING"))
        moved = await new.next("generate")
        new.accept(moved)
        await answer_on(new, moved)
        assert await reading == "".join(WORDS)
        assert answer.attempts == 1  # an edge that drains has not tried
        await answer_on(old, first)
        assert await running == "".join(WORDS)
        async with asyncio.timeout(5):
            await old.left.wait()
        assert old.peers[0].ended  # on purpose
    assert (len(old.peers), len(new.peers)) == (1, 1)


async def test_a_session_with_one_edge_waits_for_the_next_that_takes_its_place():
    edge = SessionEdge()
    async with session_over(edge) as session:
        answer = session.generate("Hello")
        reading = asyncio.create_task(answer.read())
        for _ in range(7):  # more than there may be attempts
            edge.send(**refusal(await next_asked(edge), "DRAINING", retry_after=0.001))
        asked = await next_asked(edge)
        edge.accept(asked)
        await answer_on(edge, asked)
        assert await reading == "".join(WORDS)
        assert answer.attempts == 1


async def next_asked(edge):
    """The next request, past the ends of streams that were left."""
    while True:
        async with asyncio.timeout(5):
            frame = await edge.frames.get()
        if frame.WhichOneof("frame") == "generate":
            return frame.generate


async def test_a_session_gives_up_on_edges_that_drain_once_its_patience_is_over():
    edge = SessionEdge()
    async with inference(Session=edge.session) as (_, server):
        policy = RetryPolicy(max_attempts=1, patience=0.2)
        async with Client(server.address, retries=policy) as client, client.session() as session:
            reading = asyncio.create_task(session.complete("Hello"))
            while not reading.done():
                asked = asyncio.create_task(next_asked(edge))
                await asyncio.wait([asked, reading], return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    edge.send(**refusal(asked.result(), "DRAINING", retry_after=0.01))
                asked.cancel()
            with pytest.raises(Unavailable) as told:
                await reading
    assert told.value.reason in ("DRAINING", "CONNECTION_LOST")


@pytest.mark.parametrize("reason", ["AUTH_LOST", "QUEUE_LOST"])
async def test_a_session_leaves_an_edge_that_has_lost_a_tier_if_there_is_another(reason):
    cut_off, well = SessionEdge(), SessionEdge()
    async with session_over(cut_off, well) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        cut_off.send(**refusal(await cut_off.next("generate"), reason))
        asked = await well.next("generate")
        well.accept(asked)
        await answer_on(well, asked)
        assert await reading == "".join(WORDS)


async def test_a_session_stays_with_an_edge_that_has_lost_a_tier_if_there_is_no_other():
    edge = SessionEdge()
    async with session_over(edge) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        edge.send(**refusal(await edge.next("generate"), "AUTH_LOST"))
        asked = await edge.next("generate")
        edge.accept(asked)
        await answer_on(edge, asked)
        assert await reading == "".join(WORDS)
    assert len(edge.peers) == 1


async def test_a_request_that_crosses_with_the_end_of_its_stream_is_no_attempt():
    old, new = SessionEdge(), SessionEdge()
    async with session_over(old, new) as session:
        answer = session.generate("Hello")
        reading = asyncio.create_task(answer.read())
        await old.next("generate")
        old.send(end=End(reason="draining"))
        asked = await new.next("generate")
        new.accept(asked)
        await answer_on(new, asked)
        assert await reading == "".join(WORDS)
        assert answer.attempts == 1


async def test_a_cancel_that_nobody_asked_for_is_an_edge_that_gives_up_and_another_goes_on():
    old, new = SessionEdge(), SessionEdge()
    async with session_over(old, new) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        asked = await old.next("generate")
        old.accept(asked)
        old.step((asked.handle, 0))
        old.send(cancelled=pb.SessionCancelled(handle=asked.handle))
        old.send(end=End(reason="draining"))
        again = await new.next("generate")
        assert list(again.request.resume.token_ids) == [100]
        new.accept(again)
        await answer_on(new, again, start=1)
        assert await reading == "".join(WORDS)


async def test_closing_a_session_says_so_and_ends_what_runs():
    edge = SessionEdge()
    async with session_of(edge) as session:
        reading = asyncio.create_task(session.complete("Hello"))
        await edge.next("generate")
    assert edge.peers[-1].ended
    with pytest.raises(Cancelled, match="closed"):
        await reading


async def test_an_answer_after_the_end_of_its_session_is_refused_at_once():
    async with session_of(SessionEdge()) as session:
        pass
    with pytest.raises(Cancelled, match="closed"):
        await session.complete("Hello")


async def test_what_the_block_of_a_session_raises_comes_out_as_it_is():
    with pytest.raises(KeyError, match="mine"):
        async with session_of(SessionEdge()):
            raise KeyError("mine")


@asynccontextmanager
async def inference_at(address, **methods):
    """A server at an address that was free a moment ago."""
    from penstock.chassis.server import serving
    from penstock.v1.inference_pb2_grpc import add_InferenceServicer_to_server
    from scripted import scripted

    async with serving(address, [(add_InferenceServicer_to_server, scripted(**methods))]) as server:
        yield server
