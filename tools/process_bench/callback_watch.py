"""Measures the callbacks of the event loop of a process by CPU time. It runs in that process, beside its own code.

`python callback_watch.py TIER` starts a tier with the watch. Each line on standard input asks for the figures since the
line before, which are written to standard output as one line of JSON.
"""

import gc
import json
import runpy
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import uvloop

# Methods of the loop that take a callback, and its position among the arguments.
CALLBACK_POSITIONS = {"call_soon": 0, "call_soon_threadsafe": 0, "call_later": 1, "call_at": 1, "add_reader": 1}


class CallbackWatch:
    """The longest callback since the figures were taken. CPU time of the thread includes garbage collection.

    A wall clock would count the time in which other processes of the machine run. The watch takes about 1 us per
    callback.
    """

    def __init__(self) -> None:
        self._callbacks = 0
        self._longest_s = 0.0
        self._longest: Callable[..., object] | None = None
        self._collection_begun_at = self._longest_collection_s = 0.0

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        begun_at = time.thread_time()
        try:
            callback(*args)
        finally:
            took_s = time.thread_time() - begun_at
            self._callbacks += 1
            if took_s > self._longest_s:
                self._longest_s, self._longest = took_s, callback

    def take_figures(self) -> dict[str, Any]:
        """Return the figures since the last call."""
        figures = {
            "callbacks": self._callbacks,
            "longest_s": self._longest_s,
            "longest": _name(self._longest),
            "longest_collection_s": self._longest_collection_s,
        }
        self._callbacks, self._longest_s, self._longest, self._longest_collection_s = 0, 0.0, None, 0.0
        return figures

    def on_collection(self, phase: str, _facts: dict[str, int]) -> None:
        if phase == "start":
            self._collection_begun_at = time.thread_time()
        else:
            took_s = time.thread_time() - self._collection_begun_at
            self._longest_collection_s = max(self._longest_collection_s, took_s)

    def install(self) -> None:
        """Watch the loops of this process. uvloop calls these methods for tasks and futures, too."""
        for name, position in CALLBACK_POSITIONS.items():
            setattr(uvloop.Loop, name, self._watched(getattr(uvloop.Loop, name), position))
        gc.callbacks.append(self.on_collection)

    def _watched(self, schedule: Callable[..., Any], position: int) -> Callable[..., Any]:
        run = self.run

        def schedule_watched(loop: Any, *args: Any, **options: Any) -> Any:
            return schedule(loop, *args[:position], run, *args[position:], **options)

        return schedule_watched


def _name(callback: Callable[..., object] | None) -> str:
    """Return the name of a callback: of the coroutine if it is a step of a task."""
    owner: Any = getattr(callback, "__self__", None)
    coroutine = owner.get_coro() if hasattr(owner, "get_coro") else None
    return str(getattr(coroutine or callback, "__qualname__", repr(callback)))


def answer_requests(watch: CallbackWatch) -> None:
    for _ in sys.stdin:
        print(json.dumps(watch.take_figures()), flush=True)


if __name__ == "__main__":
    tier = sys.argv.pop(1)
    own = CallbackWatch()
    own.install()
    threading.Thread(target=answer_requests, args=[own], daemon=True).start()
    runpy.run_module(f"penstock.{tier}", run_name="__main__", alter_sys=True)
