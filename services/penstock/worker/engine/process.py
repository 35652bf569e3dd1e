"""The engine's process: steps while there is work, sleeps on its pipe while there is none, ends when the pipe does."""

import os
import time
from multiprocessing.connection import Connection

from penstock.chassis.errors import PenstockError
from penstock.worker.engine.interface import Engine
from penstock.worker.engine.messages import Add, Cancel, Fatal, Ready, Refused, Stepped
from penstock.worker.engine.options import EngineOptions


def engine_main(conn: Connection, options: EngineOptions) -> None:
    """Run until the other end of the pipe closes. What else ends it is told there as `Fatal`, and raised."""
    # Threads that spin while they wait steal the core that the thread they wait for needs: beside one other busy
    # process a step took 50 to 490 ms with them, and 26 to 39 ms without. Alone on its cores an engine may spin.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from penstock.worker.engine.build import build_engine  # noqa: PLC0415 - torch reads the line above when it is loaded

    try:
        engine, card = build_engine(options)
        conn.send(Ready(card, engine.capacity()))
        while True:
            _hear(conn, engine)
            _step(conn, engine)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the front is gone, and nobody waits for what was to come
    except Exception as error:
        conn.send(Fatal(f"{type(error).__name__}: {error}"))
        raise


def _hear(conn: Connection, engine: Engine) -> None:
    """Take what the front has said; without work, wait until it says something."""
    while not engine.has_work or conn.poll():
        message = conn.recv()
        if isinstance(message, Add):
            _add(conn, engine, message)
        elif isinstance(message, Cancel):
            engine.cancel(message.seq_id)
        else:
            raise TypeError(f"the front sent a {type(message).__name__}")


def _add(conn: Connection, engine: Engine, message: Add) -> None:
    try:
        engine.add(message.spec)
    except PenstockError as error:
        conn.send(Refused(message.spec.seq_id, error.reason, error.message, error.metadata))


def _step(conn: Connection, engine: Engine) -> None:
    began = time.monotonic()
    result = engine.step()
    time.sleep(max(0.0, began + result.duration_s - time.monotonic()))
    conn.send(Stepped(result, engine.capacity(), time.monotonic() - began))
