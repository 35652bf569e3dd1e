"""Load over one session of the client library: a closed loop of streams, staggered over the length of an answer.

Its arguments are those of `native.run_session`. Prints the fields of `LoadResult` as JSON.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field

from mesh_bench.processes import cpu_us_of
from penstock.chassis.errors import PenstockError
from penstock.client import Client, Session


@dataclass(slots=True, kw_only=True)
class SessionLoad:
    model: str
    tokens: int
    start: float  # of the window, by time.monotonic
    end: float
    requests: int = 0
    seen: int = 0  # tokens in the window
    events: int = 0
    errors: int = 0
    wrong: int = 0
    waits_us: list[float] = field(default_factory=list)

    async def run_stream(self, session: Session, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            try:
                await self._run_request(session)
            except PenstockError:
                self.errors += self._in_window(time.monotonic())
                await asyncio.sleep(0.01)

    async def _run_request(self, session: Session) -> None:
        began, first, received = time.monotonic(), 0.0, 0
        async with session.generate(
            "Explain how a paged KV cache works.", model=self.model, max_output_tokens=self.tokens, ignore_eos=True
        ) as generation:
            async for chunk in generation:
                now, count = time.monotonic(), len(chunk.token_ids)
                first = first or now
                received += count
                if self._in_window(now):
                    self.seen, self.events = self.seen + count, self.events + 1
        if self._in_window(time.monotonic()):
            self.requests += 1
            self.wrong += received != self.tokens
            self.waits_us.append((first - began) * 1e6)

    def _in_window(self, now: float) -> bool:
        return self.start <= now < self.end


async def run(arguments: list[str]) -> dict[str, object]:
    target, key, model = arguments[:3]
    concurrent, tokens = int(arguments[3]), int(arguments[6])
    seconds, warmup = float(arguments[4]), float(arguments[5])
    meters = {"load": ["self"]}
    for meter in arguments[7:]:
        tier, _, pid = meter.partition("=")
        meters.setdefault(tier, []).append(pid)
    start = time.monotonic() + warmup
    load = SessionLoad(model=model, tokens=tokens, start=start, end=start + seconds)
    async with Client(target, api_key=key) as client, client.session() as session:
        stagger = max(0.0, warmup - 0.7) / concurrent
        streams = [asyncio.create_task(load.run_stream(session, place * stagger)) for place in range(concurrent)]
        await asyncio.sleep(start - time.monotonic())
        began, before = time.monotonic(), {tier: cpu_us_of(pids) for tier, pids in meters.items()}
        await asyncio.sleep(load.end - time.monotonic())
        cpu = {tier: cpu_us_of(pids) - before[tier] for tier, pids in meters.items()}
        wall = time.monotonic() - began
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    waits = sorted(load.waits_us) or [0.0]
    return {
        "wall_s": wall,
        "requests": load.requests,
        "tokens": load.seen,
        "events": load.events,
        "errors": load.errors,
        "wrong": load.wrong,
        "overrun": 0,
        "first_p50_us": waits[len(waits) // 2],
        "first_p99_us": waits[int(len(waits) * 0.99)],
        "cpu_us": cpu,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1:]))))
