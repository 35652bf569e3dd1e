"""The exact engine's steps without touching each token: a run that decodes costs nothing until it ends.

It may count where the batch must look because placed runs are never preempted: the scheduler promises each the KV
blocks it can grow to, which `add` insists on. A test holds it against the exact engine, step by step.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import chain

from penstock.simulator.mesh.engine import NEVER, Fill, Quiet, Run, Stepped
from penstock.simulator.scenario import WorkerKind
from penstock.worker.engine.step_law import StepWork, prefill_reads


class FastEngine:
    """Runs wait, then prefill, then decode; those that decode are a number and the steps at which they will end."""

    def __init__(self, kind: WorkerKind) -> None:
        self._kind = kind
        self._steps = 0
        self._waiting: deque[Run] = deque()
        self._prefilling: list[Run] = []  # oldest first
        self._decoding: dict[int, Run] = {}
        self._context = 0  # tokens known of all that decode
        self._ends: dict[int, list[Run]] = {}  # by step
        self._stops: list[int] = []  # those steps and some that are over, a heap
        self._leaving: list[Run] = []
        self._promised = 0  # blocks that all here can grow to
        self._running_promised = 0  # and those of them that run

    @property
    def has_work(self) -> bool:
        return bool(self._decoding or self._prefilling or self._waiting or self._leaving)

    def add(self, run: Run) -> None:
        self._promised += self._blocks(run.prompt + run.declared)
        assert self._promised <= self._kind.kv_blocks, "a scheduler promises no more blocks than there are"
        self._waiting.append(run)

    def cancel(self, run: Run) -> None:
        if run.last == NEVER and run not in self._leaving:
            self._leaving.append(run)

    def fill(self) -> Fill:
        running, free = len(self._decoding), self._kind.kv_blocks - self._promised
        if not self._waiting and not self._prefilling:
            return Fill(running, free, 0)
        left = [run.prompt - run.prefilled for run in chain(self._waiting, self._prefilling)]
        return Fill(len(left) + running, free, sum([tokens for tokens in left if tokens > 1]))

    def step(self) -> Stepped:
        self._steps += 1
        cancelled = self._let_go() if self._leaving else []
        # To the batch, a prompt with one token left is a decode, unless it joins in this very step.
        short = [run for run in self._prefilling if run.prompt - run.prefilled == 1]
        decodes, context = len(self._decoding) + len(short), self._context + sum(run.prompt for run in short)
        if self._waiting:
            self._admit()
        prefill, reads = self._prefill(short, decodes) if self._prefilling else (0, 0)
        self._context += len(self._decoding)
        finished = self._ends.pop(self._steps, [])
        for run in finished:
            self._end(run)
        if self._prefilling:
            finished = [*finished, *self._begin_decodes()]
        work = StepWork(prefill, decodes, context, reads)
        duration = self._kind.law.duration_s(work) if decodes or prefill else 0.0
        return Stepped(duration, prefill, decodes, finished, cancelled)

    def quiet(self, most: int) -> Quiet:
        if self._waiting or self._prefilling or self._leaving or not self._decoding:
            return Quiet()
        while self._stops[0] <= self._steps:
            heappop(self._stops)
        count, decodes, law = min(most, self._stops[0] - self._steps - 1), len(self._decoding), self._kind.law
        if not law.per_context_token_s:
            return Quiet(decodes, [law.duration_s(StepWork(0, decodes, 0, 0))] * count)
        contexts = range(self._context, self._context + count * decodes, decodes)
        return Quiet(decodes, [law.duration_s(StepWork(0, decodes, context, 0)) for context in contexts])

    def skip(self, steps: int) -> None:
        self._steps += steps
        self._context += steps * len(self._decoding)

    def _let_go(self) -> list[Run]:
        leaving, self._leaving = [run for run in self._leaving if run.last == NEVER], []
        for run in leaving:
            self._promised -= self._blocks(run.prompt + run.declared)
            if run in self._waiting:
                self._waiting.remove(run)
                continue
            self._running_promised -= self._blocks(run.prompt + run.declared)
            if run.run_id in self._decoding:
                self._ends[run.first + run.output].remove(run)
                run.last = self._steps - 2
                self._forget(run, run.prompt + run.generated)
            else:
                self._prefilling.remove(run)
        return leaving

    def _admit(self) -> None:
        """Let in the oldest for as long as slots and blocks are free, as the batch does."""
        running = len(self._decoding) + len(self._prefilling)
        while self._waiting and running < self._kind.slots:
            run = self._waiting[0]
            # One block for each that runs stays free. Counting the held ones takes long; mostly the promised do.
            keep, known = running, self._blocks(run.prompt)
            free = self._kind.kv_blocks - known - keep
            if free < self._running_promised and free < self._held():
                return
            self._prefilling.append(self._waiting.popleft())
            self._running_promised += self._blocks(run.prompt + run.declared)
            running += 1

    def _held(self) -> int:
        decoding = (self._blocks(run.prompt + self._steps - 1 - run.first) for run in self._decoding.values())
        return sum(decoding) + sum(self._blocks(run.prompt) for run in self._prefilling)

    def _prefill(self, short: Iterable[Run], decodes: int) -> tuple[int, int]:
        """Spend the step's budget; returns what of it went to prompts, and the positions that they read."""
        long = [run for run in self._prefilling if run not in short] if short else self._prefilling
        left, urgent = [run.prompt - run.prefilled for run in long], [run.is_express for run in long]
        chunks = self._kind.batching.split_prefill(left, decodes, urgent)
        reads = 0
        for run, chunk in zip(long, chunks, strict=True):
            reads += prefill_reads(run.prefilled, chunk)
            run.prefilled += chunk
        for run in short:
            run.prefilled += 1
        return sum(chunks), reads

    def _begin_decodes(self) -> list[Run]:
        """Give their first token to all whose prompt is done; returns those for whom it is the last as well."""
        done = [run for run in self._prefilling if run.prefilled == run.prompt]
        if not done:
            return []
        self._prefilling = [run for run in self._prefilling if run.prefilled < run.prompt]
        for run in done:
            run.first = self._steps - 1
            self._decoding[run.run_id] = run
            self._context += run.prompt + 1
            if run.output > 1:
                self._stop(run, self._steps + run.output - 1)
        over = [run for run in done if run.output == 1]
        for run in over:
            self._end(run)
        return over

    def _stop(self, run: Run, step: int) -> None:
        if step not in self._ends:
            self._ends[step] = []
            heappush(self._stops, step)
        self._ends[step].append(run)

    def _end(self, run: Run) -> None:
        run.last = self._steps - 1
        blocks = self._blocks(run.prompt + run.declared)
        self._promised -= blocks
        self._running_promised -= blocks
        self._forget(run, run.prompt + run.output)

    def _forget(self, run: Run, known: int) -> None:
        del self._decoding[run.run_id]
        self._context -= known

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._kind.block_size)
