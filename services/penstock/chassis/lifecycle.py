"""The life of a process: read settings, start, receive a stop request, drain, end. Owns the signals alone."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import structlog
import uvloop

from penstock.chassis.config import ConfigError, ServiceConfig, describe, load
from penstock.chassis.garbage import OldObjects, freeze_gc
from penstock.chassis.grpc_poller import unblocked_poller
from penstock.chassis.observability import telemetry
from penstock.chassis.observability.deferred import deferred_calls
from penstock.chassis.observability.sampling import SamplerInvalid
from penstock.chassis.security.process import instance_id_of

log = structlog.get_logger()

Config = TypeVar("Config", bound=ServiceConfig)


@dataclass
class Stop:
    """The stop request of this event loop's process: its reason, and the time that running work may take."""

    reason: str = ""
    grace: float | None = None  # s; None: the configured `drain_grace`
    requested: asyncio.Event = field(default_factory=asyncio.Event)
    forced: asyncio.Event = field(default_factory=asyncio.Event)
    is_awaited: bool = False  # whether the process has started and waits for this

    @property
    def is_requested(self) -> bool:
        return self.requested.is_set()

    def request(self, reason: str, grace: float | None = None) -> None:
        """Request a stop. A second request with the same reason ends the wait for running work."""
        if self.is_requested:
            if reason == self.reason:
                self.forced.set()
            return
        self.reason, self.grace = reason, grace
        log.info("stop_requested", reason=reason, grace=grace)
        self.requested.set()


_stops: WeakKeyDictionary[asyncio.AbstractEventLoop, Stop] = WeakKeyDictionary()


def current_stop() -> Stop:
    """The Stop of the running loop."""
    return _stops.setdefault(asyncio.get_running_loop(), Stop())


async def stop_requested() -> Stop:
    """Return when SIGTERM, SIGINT or Admin.Drain requests the end of this process."""
    stop = current_stop()
    stop.is_awaited = True
    await stop.requested.wait()
    return stop


def request_stop(reason: str, grace: float | None = None) -> None:
    current_stop().request(reason, grace)


@asynccontextmanager
async def background(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `loops` beside the block: the end of the block cancels them, and a crash of one cancels the block.

    A crash is raised as an ExceptionGroup; the block's own exception is raised unchanged.
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


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` under uvloop until it returns; SIGTERM and SIGINT request a stop."""
    uvloop.run(_run_with_signals(main))


async def _run_with_signals(main: Callable[[], Awaitable[None]]) -> None:
    loop, stop, main_task = asyncio.get_running_loop(), current_stop(), asyncio.current_task()
    assert main_task

    def on_signal(reason: str) -> None:
        stop.request(reason)
        if not stop.is_awaited:  # still starting, which may take long, and nothing to drain
            main_task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # the parent process may have blocked it until now
    try:
        with unblocked_poller():
            await main()
    except asyncio.CancelledError:
        if not stop.is_requested:
            raise
    finally:
        deferred_calls().flush()


def main(config_cls: type[Config], tier: str, run_tier: Callable[[Config], Coroutine[Any, Any, None]]) -> None:
    """Run a tier: load its settings, configure telemetry, run `run_tier(config)` until it returns.

    `--print-config` prints the settings and exits. Exit status: 2 for wrong settings, 1 for a crash, 0 for a drain.
    The config passed to `run_tier` has its instance_id filled in.
    """
    config = _load_or_exit(config_cls, tier)
    if "--print-config" in sys.argv[1:]:
        print(describe(config, tier))  # noqa: T201  # the requested output
        return
    config = _with_instance_id_or_exit(config, tier)
    observed = _configure_telemetry_or_exit(config, tier)
    freeze_gc()
    OldObjects().install()
    try:
        run(lambda: run_tier(config))
    except Exception as error:
        if isinstance(cause := _unwrap_group(error), ConfigError):
            _usage_error(tier, str(cause))
        log.exception("crashed", pid=os.getpid())
        sys.exit(1)
    finally:
        observed.shutdown()


def _unwrap_group(error: BaseException) -> BaseException:
    """Return the one error in nested exception groups, or the group itself if there are several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _load_or_exit(config_cls: type[Config], tier: str) -> Config:
    unknown = [each for each in sys.argv[1:] if each != "--print-config"]
    if unknown:
        _usage_error(tier, f"unknown argument {unknown[0]!r}; settings come from the environment (see --print-config)")
    try:
        return load(config_cls, tier)
    except ConfigError as error:
        _usage_error(tier, str(error))


def _with_instance_id_or_exit(config: Config, tier: str) -> Config:
    try:
        return replace(config, instance_id=instance_id_of(config, tier))
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
    except SamplerInvalid as error:
        _usage_error(tier, str(error))


def _usage_error(tier: str, message: str) -> NoReturn:
    print(f"penstock {tier}: {message}", file=sys.stderr)  # noqa: T201  # before logging is configured
    sys.exit(2)
