"""The unmodified OpenAI client runs batches through a whole mesh."""

import asyncio
import json
from contextlib import asynccontextmanager

import grpc
import openai

from mesh import running_mesh, wait_at_rest
from penstock.chassis.channels import channel
from penstock.v1 import batches_pb2 as pb
from penstock.v1.batches_pb2_grpc import BatchesStub

TIMEOUT_S = 60.0
CHAT = "/v1/chat/completions"
ENDED = {"completed", "failed", "expired", "cancelled"}
GOOD_LINES = 150
STREAM_LINES = 300  # more than one group of lines


def line(number, model, *, tokens=6, **changes):
    body = {"model": model, "messages": [{"role": "user", "content": f"line {number}"}], "max_tokens": tokens}
    whole = {"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": body}
    return json.dumps(whole | changes)


def bad_lines(model):
    """Lines that are no calls, each with the code of its error."""
    body = json.loads(line(0, model))["body"]
    yield "{", "invalid_json_line"
    yield "[]", "invalid_json_line"
    yield line(901, model, custom_id=""), "invalid_custom_id"
    yield line(902, model, method="GET"), "invalid_method"
    yield line(903, model, url="/v1/completions"), "mismatched_endpoint"
    yield line(904, model, body=[]), "invalid_body"
    yield line(905, model, body=body | {"stream": True}), "stream_unsupported"
    yield line(906, model, body=body | {"model": "unknown"}), "model_not_found"
    yield line(907, model, body=body | {"max_tokens": 0}), "invalid_argument"
    yield line(908, model, body={"model": model}), "invalid_argument"
    yield line(909, model, body=body | {"messages": "x" * 4_000_000}), "invalid_argument"
    yield line(5, model), "duplicate_custom_id"
    yield line(911, model, body=body | {"messages": "x" * 9_000_000}), "line_too_long"


def code_of(row):
    """Return the code of a row of the error file: of the line itself, or of the response to its call."""
    return row["error"]["code"] if row["error"] else row["response"]["body"]["error"]["code"]


async def end_of(api, batch):
    async with asyncio.timeout(TIMEOUT_S):
        while batch.status not in ENDED:
            await asyncio.sleep(0.1)
            batch = await api.batches.retrieve(batch.id)
    return batch


async def created(api, lines):
    content = "\n".join(lines).encode()
    file = await api.files.create(file=("lines.jsonl", content), purpose="batch")
    assert (file.bytes, file.purpose) == (len(content), "batch")
    return await api.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"job": "test"}
    )


async def rows_of(api, file_id):
    return [json.loads(row) for row in (await api.files.content(file_id)).text.splitlines()]


async def test_the_openai_client_runs_and_cancels_batches():
    async with running_mesh(engine="sim", edges=2, batches=1) as mesh:
        base_url = f"http://{mesh.plan.http}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=mesh.api_key, max_retries=0) as api:
            model = (await api.models.list()).data[0].id
            await each_bad_line_has_an_error_and_all_others_an_answer(api, model)
            await a_cancelled_batch_has_the_answers_so_far(api, model)
            await a_program_receives_the_results_of_its_lines_until_it_acknowledges_them(mesh, api, model)
        await wait_at_rest(mesh)


async def each_bad_line_has_an_error_and_all_others_an_answer(api, model):
    bad = list(bad_lines(model))
    lines = [line(number, model) for number in range(GOOD_LINES)]
    for position, (content, _) in enumerate(bad):
        lines.insert(7 * position, content)
    batch = await end_of(api, await created(api, lines))
    counts = batch.request_counts
    assert (batch.status, batch.metadata) == ("completed", {"job": "test"})
    assert (counts.total, counts.completed, counts.failed) == (len(lines), GOOD_LINES, len(bad))
    output = await rows_of(api, batch.output_file_id)
    assert [row["custom_id"] for row in output] == [f"c{number}" for number in range(GOOD_LINES)]  # in order
    assert {row["response"]["body"]["usage"]["completion_tokens"] for row in output} == {6}
    assert len({row["id"] for row in output}) == GOOD_LINES
    errors = await rows_of(api, batch.error_file_id)
    assert [code_of(row) for row in errors] == [code for _, code in bad]
    listed = [each.id async for each in api.batches.list()]
    assert listed == [batch.id]
    files = {each.id: each.purpose async for each in api.files.list()}
    assert files[batch.output_file_id] == files[batch.error_file_id] == "batch_output"
    assert (await api.files.delete(batch.output_file_id)).deleted


async def a_cancelled_batch_has_the_answers_so_far(api, model):
    """A short line has ended at the cancel. Lines that have not ended have no row, as in OpenAI's API."""
    lines = [line(0, model, tokens=1), *(line(number, model, tokens=400) for number in range(1, 3_000))]
    batch = await created(api, lines)
    async with asyncio.timeout(TIMEOUT_S):
        while not (batch.request_counts and batch.request_counts.completed):
            await asyncio.sleep(0.05)
            batch = await api.batches.retrieve(batch.id)
    cancelling = await api.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled")
    batch = await end_of(api, cancelling)
    counts = batch.request_counts
    assert batch.status == "cancelled"
    assert 0 < counts.completed < len(lines)
    assert (counts.total, counts.failed, batch.error_file_id) == (len(lines), 0, None)
    output = await rows_of(api, batch.output_file_id)
    assert len(output) == counts.completed
    assert output[0]["custom_id"] == "c0"


async def a_program_receives_the_results_of_its_lines_until_it_acknowledges_them(mesh, api, model):
    """It is cut off after its lines are stored, and goes on at another edge."""
    first, second = [spec.address for spec in mesh.plan.processes if spec.tier == "edge"]
    files = {each.id async for each in api.files.list()}
    async with line_stream(mesh, first) as stream:
        for number in range(STREAM_LINES):
            await stream.write(pb.RunLinesRequest(line=item(number, model)))
        stored = await stream.read()
        while stored.stored.lines < STREAM_LINES:
            stored = await stream.read()
    async with line_stream(mesh, second) as stream:
        await stream.write(pb.RunLinesRequest(line=pb.BatchLine(custom_id="bad", body=b"{")))
        await stream.write(pb.RunLinesRequest(end=pb.EndLines()))
        results = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(results) < STREAM_LINES + 1:
                if (frame := await stream.read()).WhichOneof("frame") == "result":
                    results.append(frame.result)
        assert [each.number for each in results] == list(range(1, STREAM_LINES + 2))
        assert {each.custom_id for each in results if each.is_error} == {"bad"}
        assert {each.custom_id for each in results} == {"bad", *(f"i{number}" for number in range(STREAM_LINES))}
        await stream.write(pb.RunLinesRequest(acknowledge=pb.AcknowledgeResults(number=len(results))))
        assert await stream.read() is grpc.aio.EOF
    assert {each.id async for each in api.files.list()} == files
    async with line_stream(mesh, first) as stream:  # nothing is left
        await stream.write(pb.RunLinesRequest(end=pb.EndLines()))
        assert await stream.read() is grpc.aio.EOF


def item(number, model):
    return pb.BatchLine(custom_id=f"i{number}", body=json.dumps(json.loads(line(number, model))["body"]).encode())


@asynccontextmanager
async def line_stream(mesh, address):
    async with channel(address) as to_edge:
        call = BatchesStub(to_edge).RunLines(metadata=(("authorization", f"Bearer {mesh.api_key}"),), timeout=TIMEOUT_S)
        await call.write(pb.RunLinesRequest(open=pb.OpenLines(name="program", endpoint=CHAT)))
        try:
            yield call
        finally:
            call.cancel()
