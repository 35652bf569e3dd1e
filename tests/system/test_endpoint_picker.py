"""The endpoint picker protocol (proposal 004), with a real Envoy in front of three fake OpenAI servers.

Envoy runs the configuration that is shipped, with other addresses and a filter that sets subset hints from a header.
"""

import asyncio
import json

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from picker_front import SUBSET_HEADER, body_modes, read_head, running_picker

DESTINATION = "x-gateway-destination-endpoint"
STREAM = b'{"model":"small","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def server_of(answer):
    return json.loads(answer[2])["server"]


def subset(*addresses):
    return {SUBSET_HEADER.replace("-", "_"): ",".join(addresses)}


@pytest.mark.parametrize("source", ["header", "metadata"])
async def test_the_header_and_the_metadata_name_the_endpoint_that_serves(tmp_path, source):
    async with running_picker(tmp_path, source=source) as front:
        for _ in range(6):
            answer = await front.call()
            assert answer[0] == 200
        for server in front.servers:
            assert server.requests, f"{server.name} got no request"
            for headers, _ in server.requests:
                first, second = headers[DESTINATION].split(",")
                assert first == server.address
                assert second in {each.address for each in front.servers} - {first}
        assert await front.metric("penstock_picker_moves_total") == 0, "the endpoint that served is reported"
        forged = await front.call(**{DESTINATION: "127.0.0.1:1"})
        assert forged[0] == 200, "a client's header is replaced"


async def test_only_endpoints_of_the_subset_are_picked(tmp_path):
    async with running_picker(tmp_path) as front:
        a, b, c = (each.address for each in front.servers)
        assert {server_of(await front.call(**subset(b))) for _ in range(4)} == {"b"}
        assert {server_of(await front.call(**subset(a, c))) for _ in range(4)} == {"a", "c"}
        assert server_of(await front.call(b"", **subset(c))) == "c"
        for none in (["127.0.0.1:1"], ["", ""]):
            status, headers, body = await front.call(**subset(*none))
            assert status == 503
            assert headers["retry-after"] == "1"
            assert json.loads(body)["error"]["code"] == "no_endpoint"


async def test_without_a_ready_endpoint_the_answer_is_503_and_with_one_again_it_is_served(tmp_path):
    async with running_picker(tmp_path, servers=1) as front:
        (server,) = front.servers
        server.stop()
        await front.process.wait_for_line('"endpoint_state"', '"state":"down"')
        status, headers, _ = await front.call()
        assert (status, headers["retry-after"]) == (503, "1")
        async with server.serving(server.port):
            await front.process.wait_for_line('"endpoint_state"', '"state":"ready"')
            assert server_of(await front.call()) == "a"


async def test_a_request_that_is_dropped_is_answered_429_and_one_that_waits_is_served_next(tmp_path):
    async with running_picker(tmp_path, servers=1, SLOTS=1, MAX_WAITING=1) as front:
        (server,) = front.servers
        running, writer = await front.open(STREAM)
        await running.readuntil(b"a first\n\n")
        waiting, waiting_writer = await front.open(STREAM)
        await front.picker_waits(1)
        status, headers, body = await front.call(STREAM)
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["error"]["code"] == "queue_full"
        assert (await front.call(b"", path="/v1/models"))[0] == 200, "a request without a body needs no slot"
        server.may_continue.set()
        assert b"a second" in await running.readuntil(b"a second\n\n")
        assert b"a first" in await waiting.readuntil(b"a first\n\n")
        writer.close(), waiting_writer.close()


async def test_the_proxy_retries_on_the_next_endpoint_of_the_list(tmp_path):
    async with running_picker(tmp_path, servers=2, SCRAPE_INTERVAL=30) as front:
        a, b = front.servers
        a.stop()
        answers = [await front.call() for _ in range(4)]
        assert {server_of(each) for each in answers} == {"b"}
        assert {headers[DESTINATION] for headers, _ in b.requests} >= {f"{a.address},{b.address}"}
        assert await front.metric("penstock_picker_moves_total") >= 1
        assert await front.metric("penstock_picker_slots_held") == 0


MODES = (
    ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
    ("FULL_DUPLEX_STREAMED", "NONE"),
    ("BUFFERED", "STREAMED"),
    ("BUFFERED_PARTIAL", "BUFFERED"),
    ("STREAMED", "NONE"),
    ("NONE", "NONE"),
)


async def test_bodies_pass_whole_in_every_mode(tmp_path):
    body = b'{"model":"small","prompt":"%s"}' % (b"word " * 60_000)
    async with running_picker(tmp_path, servers=1, listeners=MODES) as front:
        (server,) = front.servers
        tokens = 0
        for (request_mode, _), port in front.further_ports.items():
            answer = await front.call(body, port=port)
            assert answer[0] == 200
            assert server.requests.pop()[1] == body
            before, tokens = tokens, await front.metric("penstock_picker_prompt_tokens_total")
            assert (tokens - before > 10_000) == (request_mode not in {"STREAMED", "NONE"})
            if request_mode == "FULL_DUPLEX_STREAMED":
                reader, writer = await front.open(body, trailers=True, port=port)
                assert (await read_head(reader))[0] == 200
                assert server.requests.pop()[1] == body
                tokens = await front.metric("penstock_picker_prompt_tokens_total")
                writer.close()
            await front.picker_holds(0)


async def test_a_response_passes_piece_by_piece_and_holds_its_slot_to_the_end(tmp_path):
    listeners = [("BUFFERED", "STREAMED"), ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED")]
    async with running_picker(tmp_path, servers=1, listeners=listeners) as front:
        for done, port in enumerate(front.further_ports.values()):
            front.servers[0].may_continue.clear()
            reader, writer = await front.open(STREAM, port=port)
            await reader.readuntil(b"a first\n\n")  # the second is not made before `may_continue`
            assert await front.metric("penstock_picker_slots_held") == 1
            front.servers[0].may_continue.set()
            await reader.readuntil(b"completion_tokens")
            await front.picker_holds(0)
            assert await front.metric("penstock_picker_responses_total") == done + 1
            writer.close()


async def test_a_client_that_disconnects_frees_its_slot_and_its_place(tmp_path):
    listeners = [("BUFFERED", "STREAMED"), ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED")]
    async with running_picker(tmp_path, servers=1, listeners=listeners, SLOTS=1) as front:
        for done, port in enumerate(front.further_ports.values()):
            running, writer = await front.open(STREAM, port=port)
            await running.readuntil(b"a first\n\n")
            _, waiting = await front.open(STREAM, port=port)
            await front.picker_waits(1)
            waiting.close()
            await front.picker_waits(0)
            writer.close()
            await front.picker_holds(0)
            assert len(front.servers[0].requests) == done + 1, "the one that waited was not sent"


async def test_a_request_waits_longer_than_the_proxy_waits_for_an_answer(tmp_path):
    fields = {"message_timeout": "0.2s", "max_message_timeout": "60s"}
    modes = body_modes("BUFFERED", "STREAMED")
    async with running_picker(tmp_path, servers=1, modes=modes, filter_fields=fields, SLOTS=1) as front:
        running, writer = await front.open(STREAM)
        await running.readuntil(b"a first\n\n")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(front.call())
            await front.picker_waits(1)
            await asyncio.sleep(0.4)  # no event: the time of the proxy has passed
            front.servers[0].may_continue.set()
        assert waiting.result()[0] == 200
        writer.close()


async def test_a_body_beyond_the_limit_is_refused(tmp_path):
    async with running_picker(tmp_path, servers=1, MAX_BODY_BYTES=1000) as front:
        status, _, body = await front.call(b'{"prompt":"%s"}' % (b"x" * 1000))
        assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")


async def test_without_the_picker_requests_fail_or_go_on_as_the_gateway_says(tmp_path):
    modes = body_modes("BUFFERED", "STREAMED")  # a proxy that streams in both directions cannot go on without it
    for allow, status in ((False, 500), (True, 200)):
        fields = {"failure_mode_allow": allow}
        async with running_picker(tmp_path, servers=1, modes=modes, filter_fields=fields) as front:
            front.process.child.kill()
            await front.process.child.wait()
            assert (await front.call())[0] == status


async def test_the_health_of_the_picker_has_the_names_of_the_protocol(tmp_path):
    async with (
        running_picker(tmp_path, servers=1) as front,
        grpc.aio.insecure_channel(f"127.0.0.1:{front.picker_port}") as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, name
