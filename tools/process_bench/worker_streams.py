"""Workers of a fleet in one process: each has its stream to a scheduler and sends what a busy worker sends.

`python worker_streams.py FIRST COUNT SLOTS ADDRESS` attaches the workers at the first line on standard input, and
writes the number of streams opened and of frames sent to standard output, several times a second.
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from penstock.chassis.channels import channel
from penstock.chassis.garbage import freeze_gc
from penstock.chassis.lifecycle import run
from penstock.chassis.streams.link import Link
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1 import scheduler_pb2 as pb
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceStub
from penstock.worker.scheduler_session.load_report import MAX_STEPS_BETWEEN_REPORTS
from penstock.worker.scheduler_session.progress import output_interval_s

SHARDS = 8
STEP_S = 0.03  # s of an engine step
PROMPT_TOKENS, MAX_OUTPUT_TOKENS, BLOCK_TOKENS = 500, 4_000, 16
BLOCKS = (PROMPT_TOKENS + MAX_OUTPUT_TOKENS) // BLOCK_TOKENS  # KV blocks of a lease
MODEL = "m"
TICKS_PER_S = 100  # portions in which the frames of the workers are sent
TICKS_PER_FIGURE = 10


class RecordedWorker:
    """The frames of one worker whose slots are all busy, and its stream."""

    def __init__(self, number: int, slots: int, address: str) -> None:
        self._profile = _profile(number, slots)
        self._first = pb.Progress(leases=_served_in_full(self._profile), steps=1)
        self._load = pb.LoadReport(running=slots, tokens_per_second=slots / STEP_S)
        self._load.step_time.FromMilliseconds(round(1e3 * STEP_S))
        self._numbers = range(1, slots + 1)
        self._is_first_sent = False
        self.streams_opened = 0
        self.is_up = asyncio.Event()
        self._channel = channel(address)
        hello = hello_of("worker", f"w{number}")
        hello.address = f"w{number}:1"
        self._link: Any = Link(
            f"w{number}",
            self._open,
            pb.AttachRequest,
            hello,
            on_frame=lambda _: None,
            on_up=lambda _: self._attach(),
            is_quiet=True,
        )

    def _open(self) -> Any:
        self.streams_opened += 1
        return SchedulerServiceStub(self._channel).Attach()

    def _attach(self) -> None:
        self._is_first_sent = False
        self._link.send(pb.AttachRequest(profile=self._profile))
        self.is_up.set()

    async def run(self) -> None:
        await self._link.run()

    def report(self, steps: int) -> None:
        progress = self._first
        if self._is_first_sent:
            tokens = [steps] * len(self._numbers)
            progress = pb.Progress(lease_numbers=self._numbers, output_tokens=tokens, steps=steps)
        self._is_first_sent = self._link.send(pb.AttachRequest(progress=progress))

    def report_load(self, steps: int) -> None:
        self._load.steps = steps
        self._link.send(pb.AttachRequest(load_report=self._load))


def _profile(number: int, slots: int) -> pb.Profile:
    running = [
        pb.RunningLease(
            lease_id=f"scheduler-1-7d793037-{each}",
            kv_blocks=BLOCKS,
            ticket_id=f"{each:032x}",
            attempt=1,
            queue_id=f"q{each % SHARDS}",
        )
        for each in range(number * slots, (number + 1) * slots)
    ]
    profile = pb.Profile(model=MODEL, card_digest="d", slots=slots, kv_blocks=slots * BLOCKS, running=running)
    profile.block_size, profile.context_length = BLOCK_TOKENS, 8_192
    return profile


def _served_in_full(profile: pb.Profile) -> list[pb.ServedLease]:
    served = [
        pb.ServedLease(lease_id=each.lease_id, prompt_tokens=PROMPT_TOKENS, output_tokens=1, number=at)
        for at, each in enumerate(profile.running, 1)
    ]
    for each in served:
        each.first_token_after.FromMilliseconds(300)
    return served


class PeriodicSends:
    """A send of each worker in every interval, evenly spread."""

    def __init__(
        self, workers: list[RecordedWorker], send: Callable[[RecordedWorker, int], None], interval_s: float
    ) -> None:
        self._send, self._interval_s = send, interval_s
        now = time.monotonic()
        self._due = deque((now + interval_s * at / len(workers), each) for at, each in enumerate(workers))

    def run(self, now: float, steps: int) -> int:
        """Send what is due, and return the number of frames. Sends that were late do not follow each other."""
        sent = 0
        while self._due[0][0] <= now:
            due_at, worker = self._due.popleft()
            self._send(worker, steps)
            self._due.append((max(due_at + self._interval_s, now), worker))
            sent += 1
        return sent


async def run_workers(first: int, workers: int, slots: int, address: str) -> None:
    fleet = [RecordedWorker(number, slots, address) for number in range(first, first + workers)]
    freeze_gc()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    async with asyncio.TaskGroup() as group:
        for each in fleet:
            group.create_task(each.run())
        for each in fleet:
            await each.is_up.wait()
        begun_at, sent = time.monotonic(), 0
        periodic = [
            PeriodicSends(fleet, RecordedWorker.report, output_interval_s(slots)),
            PeriodicSends(fleet, RecordedWorker.report_load, MAX_STEPS_BETWEEN_REPORTS * STEP_S),
        ]
        for tick in count():
            now = time.monotonic()
            sent += sum(each.run(now, 1 + round((now - begun_at) / STEP_S)) for each in periodic)
            if not tick % TICKS_PER_FIGURE:
                print(sum(each.streams_opened for each in fleet), sent, flush=True)
            await asyncio.sleep(1 / TICKS_PER_S)


if __name__ == "__main__":
    first_worker, worker_count, slot_count = map(int, sys.argv[1:4])
    run(lambda: run_workers(first_worker, worker_count, slot_count, sys.argv[4]))
