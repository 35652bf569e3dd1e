"""`penstock batch` against the whole lane: submit, watch, fetch, cancel and list."""

import asyncio
import json

import orjson
import pytest
from click.testing import CliRunner

from batch_lane import KEY, batch_lane
from penstock.chassis.errors import PenstockError, Unavailable
from penstock.cli.__main__ import cli
from penstock.cli.batches import run as batch_run
from penstock.cli.tables import stderr_console, stdout_console

ENDPOINT = "/v1/embeddings"
TIMEOUT_S = 60.0
pytestmark = pytest.mark.usefixtures("_wide_output")


@pytest.fixture
def _wide_output(monkeypatch):
    """Lines are not cut, whatever the terminal of the test run is, and watching does not take long."""
    monkeypatch.setattr(stdout_console, "width", 200)
    monkeypatch.setattr(stderr_console, "width", 200)
    monkeypatch.setattr(batch_run, "POLL_INTERVAL_S", 0.05)


@pytest.fixture
async def lane(tmp_path):
    async with batch_lane(tmp_path / "files") as found:
        yield found


def write_lines(path, good, bad=0):
    rows = [{"custom_id": f"c{each}", "method": "POST", "url": ENDPOINT, "body": {}} for each in range(good)]
    path.write_bytes(b"\n".join([*map(orjson.dumps, rows), *[b"{"] * bad]))
    return str(path)


async def run(lane, *arguments, key=KEY):
    command = ["batch", *arguments, "--target", lane.address, "--key", key]
    return await asyncio.to_thread(CliRunner(catch_exceptions=True).invoke, cli, command)


async def submitted(lane, path, *options):
    result = await run(lane, "submit", path, "--endpoint", ENDPOINT, *options)
    assert result.exit_code == 0, result.output
    return result.stdout.split()[0]


async def test_a_file_whose_first_line_names_no_endpoint_is_not_uploaded(lane, tmp_path):
    path = tmp_path / "lines.jsonl"
    for line in ("", "no JSON", "[]", '{"url": "/v1/models"}', '{"custom_id": "c1"}'):
        path.write_text(line)
        result = await run(lane, "submit", str(path))
        assert result.exit_code == 2
        assert "the first line of" in result.output


async def test_a_watched_batch_ends_and_its_files_are_fetched_in_the_order_of_the_lines(lane, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_lines(tmp_path / "lines.jsonl", 300, bad=2)
    result = await run(lane, "submit", path, "--watch")  # the endpoint is that of the first line
    assert result.exit_code == 0
    batch_id, *_ = result.stdout.split()
    assert "300 of 302 lines answered, 2 failed" in result.stdout
    assert f"penstock batch fetch {batch_id}" in result.stdout
    assert (await run(lane, "fetch", batch_id)).exit_code == 0
    rows = [orjson.loads(line) for line in (tmp_path / f"{batch_id}_output.jsonl").read_bytes().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"c{each}" for each in range(300)]
    assert len((tmp_path / f"{batch_id}_error.jsonl").read_bytes().splitlines()) == 2
    assert not list(tmp_path.glob("*.part"))


async def test_answers_are_written_to_a_named_file_or_to_stdout(lane, tmp_path):
    batch_id = await submitted(lane, write_lines(tmp_path / "lines.jsonl", 3), "--watch")
    to_stdout = await run(lane, "fetch", batch_id, "--output", "-")
    assert len(to_stdout.stdout_bytes.splitlines()) == 3
    await run(lane, "fetch", batch_id, "--output", str(tmp_path / "answers"))
    assert (tmp_path / "answers").read_bytes() == to_stdout.stdout_bytes


async def test_a_cancelled_batch_makes_a_watch_fail_and_its_answers_can_be_fetched(lane, tmp_path):
    lane.edge.is_answering = False
    batch_id = await submitted(lane, write_lines(tmp_path / "lines.jsonl", 300))
    async with asyncio.timeout(TIMEOUT_S):
        while not lane.edge.running:  # noqa: ASYNC110  # of the lane
            await asyncio.sleep(0.01)
    early = await run(lane, "fetch", batch_id)
    assert isinstance(early.exception, PenstockError)
    assert early.exception.reason == "BATCH_NOT_ENDED"
    number = min(lane.edge.running)
    lane.edge.answer(number)
    watching = asyncio.create_task(run(lane, "watch", batch_id))
    assert (await run(lane, "cancel", batch_id)).exit_code == 0
    watched = await watching
    assert (watched.exit_code, watched.exception.reason) == (1, "BATCH_NOT_COMPLETED")
    assert "cancelled: 1 of 300 lines answered" in str(watched.exception)
    await run(lane, "fetch", batch_id, "--output", str(tmp_path / "answers"))
    assert len((tmp_path / "answers").read_bytes().splitlines()) == 1


async def test_batches_are_listed_for_people_and_for_programs(lane, tmp_path):
    path = write_lines(tmp_path / "lines.jsonl", 3)
    first, second = await submitted(lane, path, "--watch"), await submitted(lane, path, "--watch")
    table = (await run(lane, "list")).stdout.splitlines()
    assert [line.split()[:2] for line in table[1:]] == [[second, "completed"], [first, "completed"]]
    listed = json.loads((await run(lane, "list", "--limit", "1", "--json")).stdout)
    assert [each["id"] for each in listed] == [second]


async def test_metadata_and_window_are_those_of_the_command(lane, tmp_path):
    path = write_lines(tmp_path / "lines.jsonl", 1)
    result = await run(
        lane, "submit", path, "--endpoint", ENDPOINT, "--window", "2d", "--metadata", "team=a=b", "--json"
    )
    found = json.loads(result.stdout)
    assert (found["completionWindow"], found["metadata"]) == ("172800s", {"team": "a=b"})


async def test_errors_of_the_mesh_are_those_of_the_command(lane, tmp_path):
    unknown = await run(lane, "watch", "batch_0")
    assert unknown.exception.reason == "BATCH_UNKNOWN"
    path = write_lines(tmp_path / "lines.jsonl", 1)
    refused = await run(lane, "submit", path, key="pk_other_secret")
    assert refused.exception.reason == "KEY_UNKNOWN"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--window", "30s"], "must be 1m to 7d"),
        (["--window", "8d"], "must be 1m to 7d"),
        (["--metadata", "team"], "must be NAME=VALUE"),
        (["--endpoint", "/v1/images"], "is not one of"),
    ],
)
async def test_a_wrong_option_is_rejected_before_a_call(tmp_path, arguments, message):
    path = write_lines(tmp_path / "lines.jsonl", 1)
    result = CliRunner().invoke(cli, ["batch", "submit", path, *arguments])
    assert result.exit_code == 2
    assert message in result.output


class LostRead:
    """A client whose edge is gone after the first part."""

    async def read(self, file_id):
        yield b"0123"
        raise Unavailable("the edge is gone")


async def test_a_read_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(Unavailable):
        await batch_run._download(LostRead(), "file-1", str(tmp_path / "answers"))
    assert not list(tmp_path.iterdir())
