"""Many workers attach at once, as after the start of a scheduler: the number of frames to shards and edges."""

from collections import Counter

from dispatch_mesh import LEASE_TTL_S, MODEL, START_UNIX_S, book_of, profile_of
from penstock.queue import effects as queue_out
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.effects import CatalogUpdate
from penstock.scheduler.leases import LeaseBook

SHARDS, EDGES, WORKERS = 8, 50, 1_000
WORKERS_PER_TICK = 100


class Storm:
    """One scheduler, its shards and their edges. Counts the frames by kind."""

    def __init__(self):
        self.scheduler = Dispatcher(leases=LeaseBook(ttl=LEASE_TTL_S, prefix="s"))
        self.shards = {f"q{number}": book_of() for number in range(SHARDS)}
        self.now = START_UNIX_S
        self.frames = Counter()
        self.hints = []
        for book in self.shards.values():
            book.on_scheduler_connected("s", self.now)
        for name in self.shards:
            self.perform(self.scheduler.on_queue_connected(name))
        self.frames.clear()

    def perform(self, effects):
        for effect in effects:
            if isinstance(effect, CatalogUpdate):
                self.frames["catalogs to shards"] += SHARDS
                for book in self.shards.values():
                    self.perform_shard(book.on_catalog("s", effect.entries, self.now))
            else:
                self.frames["others to shards"] += 1

    def perform_shard(self, effects):
        for effect in effects:
            if isinstance(effect, queue_out.CatalogUpdate):
                self.frames["catalogs to edges"] += EDGES
                self.hints = [each.workers_hint for each in effect.entries]

    def attach(self, worker):
        self.perform(self.scheduler.on_worker_attached(worker, worker, f"{worker}:1", profile_of(slots=256)))

    def tick(self):
        self.now += 0.1
        self.perform(self.scheduler.tick(self.now))
        for book in self.shards.values():
            self.perform_shard(book.tick(self.now))


def test_catalogs_are_sent_per_tick_and_not_per_worker():
    storm = Storm()
    for number in range(WORKERS):
        storm.attach(f"w{number}")
        if not (number + 1) % WORKERS_PER_TICK:
            storm.tick()
    ticks = WORKERS // WORKERS_PER_TICK
    assert storm.frames["catalogs to shards"] <= (1 + ticks) * SHARDS
    assert storm.frames["catalogs to edges"] <= (1 + ticks) * SHARDS * EDGES
    assert storm.frames["others to shards"] <= WORKERS
    assert storm.hints == [WORKERS]


def test_a_model_that_appears_or_is_lost_is_sent_at_once():
    storm = Storm()
    storm.attach("first")
    assert (storm.frames["catalogs to shards"], storm.frames["catalogs to edges"]) == (SHARDS, SHARDS * EDGES)
    assert [entry.model for entry in storm.scheduler.fleet.catalog()] == [MODEL]
    storm.perform(storm.scheduler.on_worker_lost("first"))
    assert (storm.frames["catalogs to shards"], storm.frames["catalogs to edges"]) == (2 * SHARDS, 2 * SHARDS * EDGES)
