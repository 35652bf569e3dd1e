"""A process's life: read settings, start, be asked to stop, drain, end. Owns signals and nothing else."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import structlog
import uvloop

from penstock.chassis.config import ConfigError, ServiceConfig, describe, load
from penstock.chassis.observability import telemetry
from penstock.chassis.observability.deferred import deferred_calls

log = structlog.get_logger()

Config = TypeVar("Config", bound=ServiceConfig)


@dataclass
class Stop:
    """Whether this event loop's process was asked to end, by whom, and how long running work may take."""

    reason: str = ""
    grace: float | None = None  # s; None: as configured
    requested: asyncio.Event = field(default_factory=asyncio.Event)
    forced: asyncio.Event = field(default_factory=asyncio.Event)
    is_awaited: bool = False  # whether the process has come so far as to wait for this

    @property
    def is_requested(self) -> bool:
        return self.requested.is_set()

    def request(self, reason: str, grace: float | None = None) -> None:
        """Ask once; a second ask by the same means says not to wait for running work any more."""
        if self.is_requested:
            if reason == self.reason:
                self.forced.set()
            return
        self.reason, self.grace = reason, grace
        log.info("stop_requested", reason=reason, grace=grace)
        self.requested.set()


_stops: WeakKeyDictionary[asyncio.AbstractEventLoop, Stop] = WeakKeyDictionary()


def current_stop() -> Stop:
    """The one Stop of the running loop."""
    return _stops.setdefault(asyncio.get_running_loop(), Stop())


async def stop_requested() -> Stop:
    """Return when SIGTERM, SIGINT or Admin.Drain asks this process to end."""
    stop = current_stop()
    stop.is_awaited = True
    await stop.requested.wait()
    return stop


def request_stop(reason: str, grace: float | None = None) -> None:
    current_stop().request(reason, grace)


@asynccontextmanager
async def background(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `loops` beside the block: they are cancelled when it is left, and it is cancelled when one crashes.

    A crash leaves as an ExceptionGroup; the block's own exception leaves as it is.
    """
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in loops]
        try:
            yield
        except Exception as error:  # noqa: BLE001  # raised below: a TaskGroup would wrap it
            failure = error
        finally:
            for each in tasks:
                each.cancel()
    if failure:
        raise failure


def new_instance_id(tier: str) -> str:
    return f"{tier}-{uuid4().hex[:8]}"


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` under uvloop with SIGTERM and SIGINT answered; returns when it is done."""
    uvloop.run(_run_with_signals(main))


async def _run_with_signals(main: Callable[[], Awaitable[None]]) -> None:
    loop, stop, whole = asyncio.get_running_loop(), current_stop(), asyncio.current_task()
    assert whole

    def answer(reason: str) -> None:
        stop.request(reason)
        if not stop.is_awaited:  # still starting, perhaps for long: nothing is there to be drained
            whole.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, answer, number.name)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # whoever started us may have held it back until now
    try:
        await main()
    except asyncio.CancelledError:
        if not stop.is_requested:
            raise
    finally:
        deferred_calls().flush()


def main(config_cls: type[Config], tier: str, run_tier: Callable[[Config], Coroutine[Any, Any, None]]) -> None:
    """The whole of a tier's __main__: settings, telemetry, `run_tier(config)` until it returns.

    `--print-config` shows the settings and ends. Wrong settings end with status 2, a crash with 1, a drain with 0.
    The config that `run_tier` gets has its instance_id filled in.
    """
    config = _load_or_exit(config_cls, tier)
    if "--print-config" in sys.argv[1:]:
        print(describe(config, tier))  # noqa: T201  # this is what was asked for
        return
    config = replace(config, instance_id=config.instance_id or new_instance_id(tier))
    observed = _configure_telemetry_or_exit(config, tier)
    freeze_gc()
    try:
        run(lambda: run_tier(config))
    except Exception as error:
        if isinstance(refused := _unwrap_group(error), ConfigError):
            _usage_error(tier, str(refused))
        log.exception("crashed", pid=os.getpid())
        sys.exit(1)
    finally:
        observed.shutdown()


def _unwrap_group(error: BaseException) -> BaseException:
    """Return what a task group was left by, where that is one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def freeze_gc() -> None:
    """Have no collection of garbage look at what was imported and is to stay: that holds all up for 40 to 110 ms."""
    gc.collect()
    gc.freeze()


def _load_or_exit(config_cls: type[Config], tier: str) -> Config:
    unknown = [each for each in sys.argv[1:] if each != "--print-config"]
    if unknown:
        _usage_error(tier, f"unknown argument {unknown[0]!r}; settings come from the environment (see --print-config)")
    try:
        return load(config_cls, tier)
    except ConfigError as error:
        _usage_error(tier, str(error))


def _configure_telemetry_or_exit(config: ServiceConfig, tier: str) -> telemetry.Telemetry:
    try:
        return telemetry.configure(
            tier,
            config.instance_id,
            otlp_endpoint=config.otlp_endpoint,
            metrics_listen=config.metrics_listen,
            log_level=config.log_level,
        )
    except OSError as error:
        _usage_error(tier, f"cannot serve metrics on {config.metrics_listen}: {error}")


def _usage_error(tier: str, message: str) -> NoReturn:
    print(f"penstock {tier}: {message}", file=sys.stderr)  # noqa: T201  # before logging is configured
    sys.exit(2)
