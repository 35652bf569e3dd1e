"""The step loop of the engine process: steps while there is work, waits on its pipe otherwise, ends with the pipe."""

import gc
import os
import time

from penstock.chassis.errors import PenstockError
from penstock.worker.engine.host.messages import Add, AddRejected, Cancel, EngineFatal, EngineReady, StepCompleted
from penstock.worker.engine.host.pipe import HostGone, HostPipe
from penstock.worker.engine.interface import Engine
from penstock.worker.engine.options import EngineOptions

FATAL_FLUSH_TIMEOUT_S = 1.0


def engine_main(pipe: HostPipe) -> None:
    """Run until the other end of the pipe closes. Any error is sent there as `EngineFatal` and raised."""
    # Threads that spin while waiting occupy cores that the working thread needs: beside one other busy process, a step
    # took 50 to 490 ms with spinning threads and 26 to 39 ms without. An engine alone on its cores may spin.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from penstock.worker.engine.build import build_engine  # noqa: PLC0415 - torch reads OMP_WAIT_POLICY when loaded

    try:
        engine, card = build_engine(_receive_options(pipe))
        # Garbage collection that walks all loaded objects would delay a step of every sequence.
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
    """Receive the options, the only message that the worker sends before `EngineReady`."""
    while not (messages := pipe.receive()):
        pipe.wait()
    [options] = messages
    assert isinstance(options, EngineOptions)
    return options


def _receive_messages(pipe: HostPipe, engine: Engine) -> None:
    """Apply received messages; wait for more while there is no work or the pipe is full."""
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
            raise TypeError(f"the worker sent a {type(message).__name__}")


def _add(pipe: HostPipe, engine: Engine, message: Add) -> None:
    try:
        engine.add(message.spec)
    except PenstockError as error:
        pipe.send(AddRejected(message.spec.seq_id, error.reason, error.message, error.metadata))


def _step(pipe: HostPipe, engine: Engine) -> None:
    began = time.monotonic()
    result = engine.step()
    time.sleep(max(0.0, began + result.duration_s - time.monotonic()))
    ended = time.monotonic()
    pipe.send(StepCompleted(result, engine.capacity(), ended - began, ended))
