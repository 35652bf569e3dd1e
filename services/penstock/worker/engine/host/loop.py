"""The engine's process: steps while there is work, sleeps on its pipe while there is none, ends when the pipe does."""

import gc
import os
import time

from penstock.chassis.errors import PenstockError
from penstock.worker.engine.host.messages import Add, AddRejected, Cancel, EngineFatal, EngineReady, StepCompleted
from penstock.worker.engine.host.pipe import HostGone, HostPipe
from penstock.worker.engine.interface import Engine
from penstock.worker.engine.options import EngineOptions

FATAL_FLUSH_TIMEOUT_S = 1.0  # s


def engine_main(pipe: HostPipe) -> None:
    """Run until the other end of the pipe closes. What else ends it is told there as `Fatal`, and raised."""
    # Threads that spin while they wait steal the core that the thread they wait for needs: beside one other busy
    # process a step took 50 to 490 ms with them, and 26 to 39 ms without. Alone on its cores an engine may spin.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from penstock.worker.engine.build import build_engine  # noqa: PLC0415 - torch reads the line above when it is loaded

    try:
        engine, card = build_engine(_receive_options(pipe))
        # A collection of garbage that walks all that is loaded, and stays, would hold up a step for every sequence.
        gc.collect()
        gc.freeze()
        pipe.send(EngineReady(card, engine.capacity()))
        while True:
            _receive_messages(pipe, engine)
            _step(pipe, engine)
    except HostGone:
        return
    except Exception as error:
        pipe.send(EngineFatal(f"{type(error).__name__}: {error}"))
        pipe.flush(FATAL_FLUSH_TIMEOUT_S)
        raise
    finally:
        pipe.close()


def _receive_options(pipe: HostPipe) -> EngineOptions:
    """What the front says first, and nothing beside it before `Ready`."""
    while not (messages := pipe.receive()):
        pipe.wait()
    [options] = messages
    assert isinstance(options, EngineOptions)
    return options


def _receive_messages(pipe: HostPipe, engine: Engine) -> None:
    """Take what the front has said; wait for it while there is no work, or no room for a step's result."""
    _apply_messages(pipe, engine)
    while pipe.is_full or not engine.has_work:
        pipe.wait()
        _apply_messages(pipe, engine)


def _apply_messages(pipe: HostPipe, engine: Engine) -> None:
    for message in pipe.receive():
        if isinstance(message, Add):
            _add(pipe, engine, message)
        elif isinstance(message, Cancel):
            engine.cancel(message.seq_id)
        else:
            raise TypeError(f"the front sent a {type(message).__name__}")


def _add(pipe: HostPipe, engine: Engine, message: Add) -> None:
    try:
        engine.add(message.spec)
    except PenstockError as error:
        pipe.send(AddRejected(message.spec.seq_id, error.reason, error.message, error.metadata))


def _step(pipe: HostPipe, engine: Engine) -> None:
    began = time.monotonic()
    result = engine.step()
    time.sleep(max(0.0, began + result.duration_s - time.monotonic()))
    pipe.send(StepCompleted(result, engine.capacity(), time.monotonic() - began, time.time()))
