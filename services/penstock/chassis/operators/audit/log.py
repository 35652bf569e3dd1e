"""The audit log of one process: file and log line, written by one thread in the order of the actions."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from penstock.chassis.config import ConfigError
from penstock.chassis.errors import Unavailable
from penstock.chassis.lifecycle import background
from penstock.chassis.operators.access import Refusal, current_actor
from penstock.chassis.operators.audit.chain import Chain, Entry
from penstock.chassis.operators.audit.file import AuditFile

log = structlog.get_logger()

HEAD_INTERVAL_S = 3_600.0
MAX_PENDING = 1_000  # lines that wait for the disk; further ones fail
CHANGE_TIMEOUT_S = 5.0  # for the disk, before an action that must be recorded
DRAIN_TIMEOUT_S = 1.0  # before an action that may go unrecorded


class AuditUnavailable(Unavailable):
    """The audit log cannot be written, so that the action was not begun."""

    default_reason = "AUDIT_UNAVAILABLE"


class AuditLog:
    """Records what operators do. With an empty `path`, lines go to the process's log alone."""

    def __init__(self, tier: str, instance_id: str, path: str = "") -> None:
        self._tier = tier
        self._instance_id = instance_id
        self._file = AuditFile(path, self._own_entry) if path else None
        self._chain = Chain()  # without a file
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        self._room = threading.BoundedSemaphore(MAX_PENDING)
        self.lines = 0
        self.failures = 0

    @property
    def chain(self) -> Chain:
        return self._file.chain if self._file else self._chain

    def figures(self) -> dict[str, float]:
        return {"audit_lines": self.lines, "audit_failures": self.failures}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Write the log during the block. Raises ConfigError if the file cannot be opened."""
        try:
            await self._open()
            try:
                async with background(self._report_head()):
                    yield
            finally:
                await self.wait_written(self._writer.submit(self._close))
                self._log_head()
        finally:
            self._writer.shutdown(wait=False)

    async def _open(self) -> None:
        if self._file:
            try:
                await asyncio.wrap_future(self._writer.submit(self._file.open))
            except OSError as error:
                raise ConfigError(f"cannot write the audit log {self._file.path}: {error}") from error

    def entry(self, action: str, parameters: Mapping[str, Any], *, actor: str = "", peer: str = "") -> Entry:
        """Return an entry for the start of an action, by the operator of the running call if `actor` is empty."""
        return Entry(
            time=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            tier=self._tier,
            instance=self._instance_id,
            actor=actor or current_actor.get(),
            peer=peer,
            action=action,
            result="begun",
            parameters=parameters,
        )

    async def begin(self, entry: Entry, *, is_required: bool) -> int:
        """Record the start of an action; return the line's number, 0 if it could not be written.

        Raises AuditUnavailable if it could not be written and `is_required`.
        """
        writing = self._submit(entry)
        with suppress(TimeoutError, OSError, ConfigError):
            async with asyncio.timeout(CHANGE_TIMEOUT_S if is_required else DRAIN_TIMEOUT_S):
                return await asyncio.shield(asyncio.wrap_future(writing))
        if is_required:
            if writing.cancel():
                self._room.release()
            text = "the audit log cannot be written, so nothing was changed; free its disk and retry"
            raise AuditUnavailable(text, retry_after=1.0)
        return 0

    def end(self, entry: Entry, begun: int, result: str, parameters: Mapping[str, Any]) -> "Future[int]":
        """Record the end of an action without a wait, also for a caller that has left."""
        now = self.entry(entry.action, parameters, actor=entry.actor, peer=entry.peer)
        return self._submit(replace(now, result=result, begun=begun))

    async def wait_written(self, writing: "Future[Any]") -> None:
        """Return once a line is on disk, or has failed, or after a second: its action is over in any case."""
        with suppress(TimeoutError, OSError, ConfigError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await asyncio.shield(asyncio.wrap_future(writing))

    def record_refusals(self, last: Refusal, count: int) -> None:
        """Record `count` attempts of callers that are not operators, of which the last one is described."""
        entry = self.entry("refused", {"method": last.method, "count": count}, actor=last.actor, peer=last.peer)
        self._submit(replace(entry, result=f"{last.error.code.name}/{last.error.reason}"))

    def _submit(self, entry: Entry) -> "Future[int]":
        if not self._room.acquire(blocking=False):
            failed: Future[int] = Future()
            failed.set_exception(OSError("too many lines wait for the disk"))
            self._on_failed(entry, failed.exception())
            return failed
        return self._writer.submit(self._write, entry)

    def _write(self, entry: Entry) -> int:
        """Write one line, in the writer's thread; return its number."""
        try:
            if self._file:
                line = self._file.append(entry)
            else:
                line = self._chain.encode(entry)
                self._chain = self._chain.after(line)
        except (OSError, ConfigError) as error:
            self._on_failed(entry, error)
            raise
        finally:
            self._room.release()
        self.lines += 1
        write = log.info if self._file else log.warning  # the only copy is logged also where `info` is not
        write("audit", line=line.decode().rstrip("\n"))
        return self.chain.seq

    def _on_failed(self, entry: Entry, error: BaseException | None) -> None:
        self.failures += 1
        log.error(
            "audit_write_failed",
            error=repr(error),
            actor=entry.actor,
            peer=entry.peer,
            action=entry.action,
            parameters=dict(entry.parameters),
            result=entry.result,
        )

    def _own_entry(self, action: str, parameters: dict[str, object]) -> Entry:
        return replace(self.entry(action, parameters, actor="process"), result="OK")

    async def _report_head(self) -> None:
        while True:
            self._log_head()
            await asyncio.sleep(HEAD_INTERVAL_S)

    def _log_head(self) -> None:
        """Log the end of the chain, so that a removal of the file's last lines is found."""
        path = self._file.path if self._file else ""
        log.info("audit_head", path=path, seq=self.chain.seq, head=self.chain.head)

    def _close(self) -> None:
        if self._file:
            self._file.close()
