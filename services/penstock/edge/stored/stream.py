"""The output of one response as it becomes known at this edge, for any number of readers."""

import asyncio
from collections.abc import Callable

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.output.answer import PLAIN, OutputFormat
from penstock.edge.output.formats import FORMATS, ReasoningFormat
from penstock.edge.stored.output_log import OutputLog
from penstock.edge.text.token_text import DescribeToken, no_text
from penstock.mesh.v1.responses_pb2 import ResponseStatus, ResponseTokens
from penstock.v1.inference_pb2 import Accepted, Finished


class ResponseOutput:
    """What is known of one response: its acceptance, its tokens and its end. Each change calls the listeners."""

    def __init__(self) -> None:
        self.log = OutputLog()
        self.accepted: Accepted | None = None
        self.format = PLAIN
        self.describe: DescribeToken = no_text
        self.rest = ""  # text that was held back until the end
        self.status: ResponseStatus.ValueType | None = None  # once it has ended
        self.finished: Finished | None = None  # of a response that ended well
        self.error: PenstockError | None = None  # of one that failed
        self.listeners: list[Callable[[], None]] = []

    def accept(self, accepted: Accepted, output_format: OutputFormat) -> None:
        self.accepted, self.format = accepted, output_format
        self.changed()

    def changed(self) -> None:
        for listener in list(self.listeners):
            listener()

    def add_part(self, first_index: int, part: ResponseTokens) -> None:
        """Add stored tokens, without a call of the listeners. Raises PartsBroken."""
        if part.accepted:
            self.accepted = Accepted.FromString(part.accepted)
            self.format = format_from(part.output_format)
        self.log.add_part(first_index, part)

    async def wait(self, is_reached: Callable[[], bool]) -> None:
        """Wait until `is_reached`, which is called after each change."""
        while not is_reached():
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(change: "asyncio.Future[None]" = change) -> None:
                if not change.done():
                    change.set_result(None)

            self.listeners.append(wake)
            try:
                await change
            finally:
                self.listeners.remove(wake)


def format_bytes(output: OutputFormat) -> bytes:
    """Return an output format as JSON; empty for plain text."""
    if output.is_plain:
        return b""
    return orjson.dumps(
        {
            "tools": sorted(output.tool_names),
            "tool_format": output.tool_format.name,
            "max_calls": output.max_calls,
            "reasoning": [output.reasoning.begin, output.reasoning.end] if output.reasoning else None,
            "begins_in_reasoning": output.begins_in_reasoning,
        }
    )


def format_from(encoded: bytes) -> OutputFormat:
    """Return the output format that `format_bytes` encoded."""
    if not encoded:
        return PLAIN
    members = orjson.loads(encoded)
    return OutputFormat(
        tool_names=frozenset(members["tools"]),
        tool_format=FORMATS[members["tool_format"]],
        max_calls=members["max_calls"],
        reasoning=ReasoningFormat(*members["reasoning"]) if members["reasoning"] else None,
        begins_in_reasoning=members["begins_in_reasoning"],
    )
