"""Logs on stderr, for our own events and those of libraries: a JSON object per line, or text if it is a terminal."""

import json
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, BinaryIO, cast

import orjson
import structlog
from structlog.typing import Processor


def configure_logs(level: str, **constants: str) -> None:
    """Send structlog and stdlib logging to stderr, with `constants` and bound context on each line."""

    def add_constants(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**constants, **event}

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_constants,
        structlog.processors.format_exc_info,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    render = _console_renderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer(_json, default=str)
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.BytesLoggerFactory(cast("BinaryIO", _DroppingStream(sys.stderr.buffer))),
        cache_logger_on_first_use=True,
    )
    _configure_stdlib(max(number, logging.INFO), shared, render)


class _DroppingStream:
    """Writes lines to a file and drops those that it cannot take, such as on a full disk.

    An exception in their place would end the work of the caller, for example what auth does about a full disk.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, line: bytes) -> None:
        with suppress(OSError):
            self._file.write(line)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


def _json(event: Any, *, default: Callable[[Any], Any]) -> bytes:
    try:
        return orjson.dumps(event, default=default)
    except TypeError:  # a text of a client with invalid Unicode, or an integer beyond 64 bits
        return json.dumps(event, default=default).encode()


def _console_renderer() -> Processor:
    """Return a renderer of lines for a person, in colour unless NO_COLOR is set."""
    renderer = structlog.dev.ConsoleRenderer(
        colors="NO_COLOR" not in os.environ, exception_formatter=structlog.dev.plain_traceback
    )

    def render(logger: Any, name: str, event: MutableMapping[str, Any]) -> bytes:
        return str(renderer(logger, name, event)).encode(errors="replace")

    return render


def _text(_: Any, __: str, line: Any) -> str:
    return str(line, "utf-8")


def _configure_stdlib(number: int, shared: list[Processor], render: Processor) -> None:
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                render,
                _text,
            ],
        )
    )
    output.addFilter(_has_no_metadata)
    logging.basicConfig(handlers=[output], level=number, force=True)
    logging.captureWarnings(capture=True)


def _has_no_metadata(record: logging.LogRecord) -> bool:
    """Return False for metadata that gRPC cannot decode: it logs a traceback with the value, which may be a key."""
    return not str(record.msg).startswith("Invalid encoding on ")
