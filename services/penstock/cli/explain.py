"""`penstock explain`: asks every edge what happened to a request, and draws where its time went."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from rich.text import Text

from penstock.chassis.channels import resolve
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import NotFound, PenstockError
from penstock.cli.admin import AdminTarget, admin_error
from penstock.cli.tables import stdout_console
from penstock.local_mesh.operator_channels import operator_channel
from penstock.v1.admin_pb2 import ExplainedRequest, ExplainRequest, ExplainResponse
from penstock.v1.admin_pb2_grpc import AdminStub

TIMEOUT_S = 2.0
MAX_WIDTH = 100  # columns
LABEL_WIDTH, LENGTH_WIDTH = 20, 11  # columns beside the bars
UNKNOWN_REASONS = ("REQUEST_UNKNOWN", "NOT_EDGE")


async def explain(names: Mapping[str, str], targets: Sequence[str], request_id: str, *, as_json: bool) -> None:
    """Explain a request of the processes of `names` (by address) or of those behind `targets`.

    Raises NotFound / REQUEST_UNKNOWN if no edge remembers it, and the error of an edge that does not answer.
    """
    resolved = [await resolve(each) for each in targets]
    addresses = [*names, *(address for each in resolved for address in each)]
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(operator_channel(address)) for address in addresses]
        asked = zip(addresses, channels, strict=True)
        found = await asyncio.gather(*(_ask(address, AdminStub(each), request_id) for address, each in asked))
    answers = [each for each in found if isinstance(each, ExplainResponse)]
    if not answers:
        raise _not_found(request_id, [each for each in found if isinstance(each, PenstockError)])
    latest = max(answers, key=lambda each: each.request.start_time.ToNanoseconds())
    if as_json:
        stdout_console.print_json(data=MessageToDict(latest, preserving_proto_field_name=True))
    else:
        width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
        stdout_console.print(Text("\n".join(lines_of(latest, width))), soft_wrap=True)


async def _ask(address: str, stub: Any, request_id: str) -> ExplainResponse | PenstockError:
    metadata = AdminTarget(target=address, as_json=False).metadata
    try:
        response: ExplainResponse = await stub.Explain(
            ExplainRequest(id=request_id), metadata=metadata, timeout=TIMEOUT_S
        )
    except grpc.aio.AioRpcError as error:
        return admin_error(error, address)
    return response


def _not_found(request_id: str, errors: Sequence[PenstockError]) -> PenstockError:
    """Return the error of a process that did not answer, else that nobody remembers the request."""
    for error in errors:
        if error.reason not in UNKNOWN_REASONS:
            return error
    edges = sum(error.reason == "REQUEST_UNKNOWN" for error in errors)
    text = (
        f"no edge of {edges} remembers a request {request_id!r}; an edge remembers its last 10,000, until it restarts."
        " Look for the id in the logs or traces"
    )
    return NotFound(text, reason="REQUEST_UNKNOWN")


def lines_of(response: ExplainResponse, width: int) -> list[str]:
    """Return the explanation as lines of at most `width` columns, except the cause."""
    request = response.request
    total = seconds_of(request.total)
    return [
        request.cause,
        "",
        *_facts(response),
        "",
        *_waterfall(request, total, width),
        "",
        *(f"not measured: {each}" for each in request.not_measured),
    ]


def _facts(response: ExplainResponse) -> list[str]:
    request = response.request
    whose = " ".join(filter(None, (request.tenant_id, request.key_id, request.priority, request.model)))
    ended = " ".join(
        filter(None, (request.outcome, request.reason, request.rejected_by and f"by {request.rejected_by}"))
    )
    sizes = f"{request.prompt_tokens} prompt ({request.cached_prompt_tokens} cached), {request.output_tokens} output"
    first = f"{1e3 * seconds_of(request.first_token):.1f} ms" if request.HasField("first_token") else "none"
    rows = {
        "request": request.request_id,
        "ticket": request.ticket_id,
        "trace": request.trace_id,
        "began": request.start_time.ToJsonString(),
        "edge": response.edge_id,
        "of": whose,
        "ended": ended,
        "tokens": sizes,
        "first token": first,
        "runs": f"{request.attempts}, the latest at {request.worker_id}" if request.attempts else "none",
    }
    return [f"{name:<12} {text}" for name, text in rows.items() if text]


def _waterfall(request: ExplainedRequest, total: float, width: int) -> list[str]:
    """Return a line for each part, with a bar at its place, and the sum."""
    room = max(10, width - LABEL_WIDTH - LENGTH_WIDTH - 2)
    lines = []
    for stage in request.stages:
        start, length = seconds_of(stage.start), seconds_of(stage.length)
        left = min(room - 1, int(room * start / total)) if total else 0
        bar = "█" * max(1, min(room - left, round(room * length / total))) if total and length else ""
        label = f"{stage.tier} {stage.name}"[: LABEL_WIDTH - 1]
        lines.append(f"{label:<{LABEL_WIDTH}}{1e3 * length:>{LENGTH_WIDTH - 3}.1f} ms  {' ' * left}{bar}".rstrip())
    return [*lines, f"{'total':<{LABEL_WIDTH}}{1e3 * total:>{LENGTH_WIDTH - 3}.1f} ms"]
