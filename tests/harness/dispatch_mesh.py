"""Real ticket books and dispatchers, connected by frames that are delivered one at a time, in any order over streams.

There is no event loop, clock or network: a stream is a list of frames per direction, and the test delivers frames.
Edges and workers are reduced to their tickets and leases.
"""

from collections import deque
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import DispatchRequest, DispatchResponse
from penstock.mesh.v1.scheduler_pb2 import Profile, RunningLease, ServedLease
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.queue import effects as queue_effects
from penstock.queue import frames as queue_frames
from penstock.queue.admission.admission import QueueLimits
from penstock.queue.autoscaling.shard_demand import ShardDemand
from penstock.queue.models.availability import ModelAvailability
from penstock.queue.policies.priority_classes import ClassFifo
from penstock.queue.ticket import from_frame
from penstock.queue.tickets.book import TicketBook
from penstock.queue.tickets.recent_leases import RecentLeases
from penstock.scheduler import effects as scheduler_effects
from penstock.scheduler import frames as scheduler_frames
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook

MODEL = "m"
LEASE_TTL_S = 5.0
STREAM_TIMEOUT_S = 2.0
MODEL_TIMEOUT_S = 10.0
START_UNIX_S = 1_000_000.0  # s; any Unix time
BLOCK_TOKENS = 16  # tokens


def ticket_of(name, *, priority=2, tokens=32, age=0.0, attempt=1, avoid=(), model=MODEL, time_left=0.0, **fields):
    return Ticket(
        ticket_id=name,
        priority=priority,
        model=model,
        prompt_tokens=tokens - 1,
        max_output_tokens=1,
        attempt=attempt,
        age_nanos=round(age * 1e9),
        time_left_nanos=round(time_left * 1e9),
        avoid_workers=avoid,
        **{"tenant_id": "acme", "weight": 1.0} | fields,
    )


def profile_of(*, slots=2, kv_blocks=8, running=(), model=MODEL, context=10_000):
    return Profile(
        model=model,
        card_digest="",
        slots=slots,
        kv_blocks=kv_blocks,
        block_size=BLOCK_TOKENS,
        context_length=context,
        running=[RunningLease(lease_id=each, kv_blocks=blocks) for each, blocks in dict(running).items()],
    )


def book_of(*, max_depth=1_000, max_tokens=1_000_000, model_timeout=MODEL_TIMEOUT_S, warm_up=0.0, new_order=ClassFifo):
    """A ticket book; the default policy has keys that do not depend on history."""
    return TicketBook(
        limits=QueueLimits(max_depth, max_tokens),
        availability=ModelAvailability(timeout=model_timeout, warm_up=warm_up, started_at=START_UNIX_S),
        recent_leases=RecentLeases(10.0),
        new_policy=new_order,
    )


def demand_of(book):
    """The demand of a shard that has run for long."""
    return ShardDemand(book.model_queues, book.accounting, complete_at=0.0)


@dataclass
class Stream:
    """One scheduler's stream to one shard."""

    up: deque[DispatchRequest] = field(default_factory=deque)
    down: deque[DispatchResponse] = field(default_factory=deque)


@dataclass
class CoreMesh:
    """Shards, schedulers and workers by name. Every ticket's endings are in `endings`, in order."""

    shards: dict[str, TicketBook] = field(default_factory=dict)
    schedulers: dict[str, Dispatcher] = field(default_factory=dict)
    streams: dict[tuple[str, str], Stream] = field(default_factory=dict)  # scheduler, shard
    now: float = START_UNIX_S
    endings: dict[str, list[str]] = field(default_factory=dict)
    leased_tickets: list[str] = field(default_factory=list)  # ticket ids in the order of their leases
    expected: dict[str, dict[str, str]] = field(default_factory=dict)  # unstarted tickets by worker and lease
    running: dict[str, dict[str, str]] = field(default_factory=dict)  # tickets by worker and lease
    scheduler_by_worker: dict[str, str] = field(default_factory=dict)  # by worker
    frames_delivered: int = 0
    express_slot_share: float = 0.0  # largest share of express slots

    @classmethod
    def of(cls, shards=1, schedulers=1, **bounds):
        mesh = cls()
        for number in range(shards):
            mesh.add_shard(f"q{number}", **bounds)
        for number in range(schedulers):
            mesh.add_scheduler(f"s{number}")
        return mesh

    # Peers.

    def add_shard(self, name, **bounds):
        book = self.shards[name] = book_of(**bounds)
        self._perform_shard(name, book.on_edge_connected("edge"))
        for scheduler in self.schedulers:
            self.connect(scheduler, name)

    def add_scheduler(self, name):
        leases = LeaseBook(ttl=LEASE_TTL_S, prefix=name)
        self.schedulers[name] = Dispatcher(leases=leases, look_ahead=0, express_slot_share=self.express_slot_share)
        for shard in self.shards:
            self.connect(name, shard)

    def remove_shard(self, name):
        """Remove a shard with all of its state."""
        for scheduler in self.schedulers:
            del self.streams[scheduler, name]
            self._perform_scheduler(scheduler, self.schedulers[scheduler].on_queue_disconnected(name))
        del self.shards[name]

    def remove_scheduler(self, name):
        """Remove a scheduler. Its workers must attach to another one, or to its successor."""
        for shard in self.shards:
            del self.streams[name, shard]
            self._perform_shard(shard, self.shards[shard].on_scheduler_disconnected(name, self.now))
        del self.schedulers[name]

    def connect(self, scheduler, shard):
        self.streams[scheduler, shard] = Stream()
        self._perform_shard(shard, self.shards[shard].on_scheduler_connected(scheduler, self.now))
        self._perform_scheduler(scheduler, self.schedulers[scheduler].on_queue_connected(shard))

    def disconnect(self, scheduler, shard):
        """Break a stream: its frames are lost, and both ends detect it."""
        del self.streams[scheduler, shard]
        self._perform_shard(shard, self.shards[shard].on_scheduler_disconnected(scheduler, self.now))
        self._perform_scheduler(scheduler, self.schedulers[scheduler].on_queue_disconnected(shard))

    def attach(self, worker, scheduler="s0", **profile):
        self.scheduler_by_worker[worker] = scheduler
        self.expected.setdefault(worker, {})
        self.running.setdefault(worker, {})
        self._perform_scheduler(
            scheduler,
            self.schedulers[scheduler].on_worker_attached(worker, worker, f"{worker}:1", profile_of(**profile)),
        )

    def detach(self, worker):
        """Remove a worker with all of its leases."""
        scheduler = self.scheduler_by_worker.pop(worker)
        self.expected.pop(worker)
        self.running.pop(worker)
        self._perform_scheduler(scheduler, self.schedulers[scheduler].on_worker_lost(worker))

    # Events.

    def enqueue(self, shard, ticket):
        self.endings.setdefault(ticket.ticket_id, [])
        book = self.shards[shard]
        self._perform_shard(shard, book.enqueue(from_frame(ticket, "edge", self.now), self.now))

    def withdraw(self, shard, name):
        self._perform_shard(shard, self.shards[shard].withdraw("edge", [name]))

    def start(self, worker, lease_id):
        self.running[worker][lease_id] = self.expected[worker].pop(lease_id)
        self.schedulers[self.scheduler_by_worker[worker]].on_lease_started(worker, lease_id)

    def finish(self, worker, lease_id, *, prompt=0, output=0):
        """End a lease; `prompt` and `output` are the tokens it was served."""
        self.running[worker].pop(lease_id, None) or self.expected[worker].pop(lease_id)
        scheduler = self.scheduler_by_worker[worker]
        served = [ServedLease(lease_id=lease_id, prompt_tokens=prompt, output_tokens=output)]
        self._perform_scheduler(scheduler, self.schedulers[scheduler].on_leases_released(worker, [lease_id], served))

    def pass_time(self, seconds):
        """Advance the time. Frames arrive first if they would exceed the timeout of a stream."""
        if seconds > STREAM_TIMEOUT_S:
            self.settle()
        self.now += seconds
        for name, book in self.shards.items():
            self._perform_shard(name, book.tick(self.now))
        for name, scheduler in self.schedulers.items():
            self._perform_scheduler(name, scheduler.tick(self.now))

    # Delivery.

    @property
    def pending_directions(self):
        """Stream directions with frames under way."""
        return [(key, way) for key, stream in self.streams.items() for way in ("up", "down") if getattr(stream, way)]

    def deliver(self, key, direction):
        """Deliver the oldest frame of one stream in one direction."""
        self.frames_delivered += 1
        scheduler, shard = key
        frame = getattr(self.streams[key], direction).popleft()
        if direction == "up":
            self._perform_shard(shard, self._from_scheduler(shard, scheduler, frame))
        else:
            self._perform_scheduler(scheduler, self._from_shard(scheduler, shard, frame))

    def settle(self, limit=20_000):
        """Deliver all frames under way. Their number is bounded."""
        until = self.frames_delivered + limit
        while moving := self.pending_directions:
            self.deliver(*moving[0])
            assert self.frames_delivered < until, "frames cause frames without end"

    def run_to_end(self, seconds=30.0, step=0.1):
        """Run until no ticket is left: leases start and finish, time passes, frames arrive."""
        until = self.now + seconds
        while self.now < until and any(book.tickets for book in self.shards.values()):
            self.settle()
            self.finish_all()
            self.settle()
            self.pass_time(step)
        self.finish_all()
        self.settle()
        self.pass_time(LEASE_TTL_S)
        self.settle()

    def finish_all(self):
        for worker in list(self.scheduler_by_worker):
            for lease_id in [*self.expected[worker], *self.running[worker]]:
                self.finish(worker, lease_id)

    def _from_scheduler(self, shard, scheduler, frame):
        book = self.shards[shard]
        kind = frame.WhichOneof("frame")
        if kind == "credit":
            credit = queue_frames.credit_of(frame.credit)
            return book.on_credit(
                scheduler, frame.credit.model, credit, self.now, return_unused=frame.credit.return_unused
            )
        if kind == "pool_stats":
            return book.on_pool_stats(
                scheduler, frame.pool_stats.model, queue_frames.pool_stats_of(frame.pool_stats, self.now)
            )
        if kind == "placed_prompts":
            prompts = queue_frames.remote_prompts_of(frame.placed_prompts, shard)
            return book.on_placed_prompts(scheduler, frame.placed_prompts.model, prompts, self.now)
        if kind == "virtual_times":
            return book.on_virtual_times(scheduler, frame.virtual_times.times)
        if kind == "service_report":
            report = frame.service_report
            tickets, steps = (
                queue_frames.served_tickets_of(report.tickets),
                queue_frames.worker_steps_of(report.workers),
            )
            return book.on_service_report(tickets, steps, queue_frames.output_progress_of(report.progress), scheduler)
        if kind == "place":
            return book.on_place(scheduler, frame.place.lease, self.now)
        if kind == "decline":
            return book.on_decline(scheduler, frame.decline.ticket_id, frame.decline.reason, self.now)
        return book.on_catalog(scheduler, frame.catalog.entries, self.now)

    def _from_shard(self, scheduler, shard, frame):
        dispatcher = self.schedulers[scheduler]
        kind = frame.WhichOneof("frame")
        if kind == "offer":
            offer = frame.offer
            return dispatcher.on_offer(shard, offer.ticket, self.now, uses_express_credit=offer.uses_express_credit)
        if kind == "offer_withdrawn":
            return dispatcher.on_offer_withdrawn(shard, frame.offer_withdrawn.ticket_ids)
        if kind == "head":
            return dispatcher.on_head(shard, frame.head, self.now)
        return dispatcher.on_credit_returned(shard, frame.credit_returned.model, frame.credit_returned.tickets)

    # Effects.

    def _perform_shard(self, shard, effects):
        for effect in [*effects, *self.shards[shard].model_queues.head_updates()]:
            if isinstance(effect, queue_effects.ToScheduler):
                if stream := self.streams.get((effect.scheduler, shard)):
                    stream.down.append(queue_frames.to_scheduler(effect, self.now))
            elif isinstance(effect, queue_effects.Leased):
                self.endings[effect.lease.ticket_id].append("leased")
                self.leased_tickets.append(effect.lease.ticket_id)
            elif isinstance(effect, queue_effects.Shed):
                self.endings[effect.ticket_id].append(effect.error.reason)

    def _perform_scheduler(self, scheduler, effects):
        for effect in effects:
            if isinstance(effect, scheduler_effects.CatalogUpdate):
                for (name, _), stream in self.streams.items():
                    if name == scheduler:
                        stream.up.append(scheduler_frames.to_queue(effect))
            elif isinstance(effect, scheduler_effects.Expect):
                self.expected[effect.worker][effect.lease.lease_id] = effect.lease.ticket_id
            elif isinstance(effect, scheduler_effects.Revoke):
                self.expected[effect.worker].pop(effect.lease_id, None)
            elif stream := self.streams.get((scheduler, effect.queue)):
                stream.up.append(scheduler_frames.to_queue(effect))
