"""Commands for batches: files of requests that run for hours."""

import re
from asyncio import run as run_async
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import find_target, json_option, target_options

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
WINDOW_UNITS_S = {"m": 60, "h": 3_600, "d": 86_400}
MAX_WINDOW_S = 7 * 86_400
MAX_LINE_BYTES = 8 << 20  # as of the lines that a batch accepts


class Window(click.ParamType[int]):
    """A time of minutes, hours or days, in s."""

    name = "window"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d{1,5})([mhd])", str(value))
        seconds = int(found[1]) * WINDOW_UNITS_S[found[2]] if found else 0
        if not WINDOW_UNITS_S["m"] <= seconds <= MAX_WINDOW_S:
            self.fail(f"{value!r} must be 1m to 7d, such as 90m, 24h or 2d", param, ctx)
        return seconds


class Pair(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} must be NAME=VALUE", param, ctx)
        return name, text


def caller_of(target: str, key: str, *, as_json: bool = False) -> Any:
    from penstock.cli.batches.run import Caller

    return Caller(*find_target(target, key), as_json)


def first_endpoint(file: Path) -> str:
    """Return the url of the first line. Raises UsageError unless it is an endpoint."""
    import orjson

    with file.open("rb") as lines:
        line = lines.readline(MAX_LINE_BYTES)
    try:
        url = orjson.loads(line)["url"]
    except (ValueError, KeyError, TypeError):
        url = None
    if url not in ENDPOINTS:
        message = f"the first line of {file} has no url of an endpoint: name {', '.join(ENDPOINTS)} with --endpoint"
        raise click.UsageError(message)
    return str(url)


@click.group()
def batch() -> None:
    """Run files of requests. Each line of a file is one call of the API, as in OpenAI's Batch API."""


@batch.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--endpoint", type=click.Choice(ENDPOINTS), help="default: the url of the first line")
@click.option(
    "--window", type=Window(), default="24h", show_default=True, help="time within which it should end: 1m to 7d"
)
@click.option("--metadata", type=Pair(), multiple=True, help="kept with the batch; repeatable")
@click.option("--watch", "is_watched", is_flag=True, help="show its progress until it has ended")
@target_options
@json_option
def submit(
    *, file: Path, endpoint: str | None, target: str, key: str, window: int, metadata: Any, as_json: bool, **given: Any
) -> None:
    """Upload FILE and start a batch of its lines. Prints the id of the batch."""
    from penstock.cli.batches.run import SubmitOptions

    chosen = endpoint or first_endpoint(file)
    options = SubmitOptions(file=file, endpoint=chosen, window_s=window, metadata=dict(metadata), **given)
    run_async(caller_of(target, key, as_json=as_json).submit(options))


@batch.command()
@click.argument("batch_id", metavar="ID")
@target_options
@json_option
def watch(batch_id: str, target: str, key: str, as_json: bool) -> None:
    """Show the progress of a batch until it has ended. The exit code is 0 if it is completed."""
    run_async(caller_of(target, key, as_json=as_json).watch(batch_id))


@batch.command()
@click.argument("batch_id", metavar="ID")
@target_options
@json_option
def cancel(batch_id: str, target: str, key: str, as_json: bool) -> None:
    """Start no further line of a batch. The answers so far can be fetched."""
    run_async(caller_of(target, key, as_json=as_json).cancel(batch_id))


@batch.command()
@click.argument("batch_id", metavar="ID")
@click.option("--output", metavar="FILE", help="file of the answers, - for stdout; default: ID_output.jsonl")
@click.option("--errors", metavar="FILE", help="file of the errors, - for stdout; default: ID_error.jsonl")
@target_options
def fetch(batch_id: str, output: str | None, errors: str | None, target: str, key: str) -> None:
    """Write the answers and the errors of a batch that has ended to files."""
    names = output or f"{batch_id}_output.jsonl", errors or f"{batch_id}_error.jsonl"
    run_async(caller_of(target, key).fetch(batch_id, *names))


@batch.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="most batches")
@target_options
@json_option
def list_batches(limit: int, target: str, key: str, as_json: bool) -> None:
    """List batches, the newest first."""
    run_async(caller_of(target, key, as_json=as_json).list(limit))
