"""A fleet of real ticket books and dispatchers with one edge that owns its requests.

The edge sends a request to its tenant's shard, again when a shard or a stream is lost, and with a new attempt when a
lease was lost or a worker died. Workers keep their running leases when they attach to another scheduler.
"""

from dataclasses import dataclass, field
from itertools import count

from dispatch_mesh import BLOCK_TOKENS, MODEL, CoreMesh, profile_of, ticket_of
from penstock.edge.upstreams.hashing import shard_for
from penstock.mesh.v1.scheduler_pb2 import RunningLease
from penstock.queue import effects as queue_effects
from penstock.queue.ticket import from_frame

SLOTS, KV_BLOCKS = 2, 8


@dataclass
class FleetRequest:
    """A request at the edge. Its lease is a worker's name and a lease id."""

    name: str
    tenant: str
    tokens: int
    priority: int
    at: float
    attempt: int = 1
    shard: str = ""
    state: str = "waits"  # then holds, runs, and finally done, left or shed
    lease: tuple[str, str] | None = None
    avoid: list[str] = field(default_factory=list)


@dataclass
class FleetMesh(CoreMesh):
    express_slot_share: float = 0.5
    requests: dict[str, FleetRequest] = field(default_factory=dict)
    edges: dict[str, str] = field(default_factory=dict)  # the edge's present stream to each shard
    names: count = field(default_factory=lambda: count(1))

    # Peers.

    def add_shard(self, name, **bounds):
        self.edges[name] = f"edge/{next(self.names)}"
        super().add_shard(name, **bounds)
        for request in self.in_state("waits"):
            if not request.shard:
                self.send(request)

    def remove_shard(self, name):
        """Remove a shard, and return the requests that waited there."""
        super().remove_shard(name)
        del self.edges[name]
        moved = [request for request in self.in_state("waits") if request.shard == name]
        for request in moved:
            self.send(request)
        return moved

    def reconnect_edge(self, shard):
        """Connect a new stream of the edge before the old one is closed; the edge enqueues its requests again."""
        former, self.edges[shard] = self.edges[shard], f"edge/{next(self.names)}"
        self._perform_shard(shard, self.shards[shard].on_edge_connected(self.edges[shard]))
        for request in self.in_state("waits"):
            if request.shard == shard:
                self.send(request)
        self._perform_shard(shard, self.shards[shard].on_edge_disconnected(former))

    def attach_worker(self, name, scheduler):
        self.attach(name, scheduler, slots=SLOTS, kv_blocks=KV_BLOCKS)

    def lose_worker(self, name):
        self.detach(name)
        for request in [*self.in_state("runs"), *self.in_state("holds")]:
            if request.lease[0] == name:
                self.send_again(request, avoid=[name] if request.state == "runs" else [])

    def lose_scheduler(self, name):
        """Remove a scheduler. Its workers attach to another one with running leases; unstarted leases are refused."""
        self.remove_scheduler(name)
        for worker in [each for each, scheduler in self.scheduler_by_worker.items() if scheduler == name]:
            self.expected[worker].clear()
            self.scheduler_by_worker[worker] = min(self.schedulers)
            running = self.running[worker]
            profile = profile_of(slots=SLOTS, kv_blocks=KV_BLOCKS)
            profile.running.extend(self._running(lease_id, each) for lease_id, each in running.items())
            core = self.schedulers[self.scheduler_by_worker[worker]]
            self._perform_scheduler(
                self.scheduler_by_worker[worker], core.on_worker_attached(worker, worker, f"{worker}:1", profile)
            )

    def _running(self, lease_id, name):
        request = self.requests[name]
        fields = {"ticket_id": name, "attempt": request.attempt, "queue_id": request.shard}
        return RunningLease(lease_id=lease_id, kv_blocks=-(-request.tokens // BLOCK_TOKENS), **fields)

    # Events of the edge.

    def in_state(self, state):
        return [request for request in self.requests.values() if request.state == state]

    def add_request(self, name, **fields):
        self.requests[name] = FleetRequest(name, at=self.now, **fields)
        self.send(self.requests[name])

    def send(self, request):
        request.state, request.lease = "waits", None
        request.shard = shard_for(self.shards, MODEL, request.tenant) or ""
        if request.shard:
            self._enqueue(request)

    def _enqueue(self, request):
        age = self.now - request.at
        fields = {"priority": request.priority, "tokens": request.tokens, "age": age, "avoid": request.avoid}
        ticket = ticket_of(request.name, attempt=request.attempt, tenant_id=request.tenant, **fields)
        waiting = from_frame(ticket, self.edges[request.shard], self.now)
        self._perform_shard(request.shard, self.shards[request.shard].enqueue(waiting, self.now))

    def send_again(self, request, avoid=()):
        request.attempt += 1
        request.avoid = [*request.avoid, *avoid][-2:]
        self.send(request)

    def cancel(self, request):
        if request.state == "runs":
            self.finish(*request.lease)
        elif request.shard in self.shards:
            edge = self.edges[request.shard]
            self._perform_shard(request.shard, self.shards[request.shard].withdraw(edge, [request.name]))
        request.state = "left"

    def start_lease(self, request):
        """Start a lease. A worker that does not know it refuses, and the edge enqueues the request again."""
        worker, lease_id = request.lease
        if lease_id in self.expected.get(worker, {}):
            self.start(worker, lease_id)
            request.state = "runs"
        else:
            self.send_again(request)

    def complete(self, request):
        worker, lease_id = request.lease
        self.finish(worker, lease_id, prompt=request.tokens - 1, output=1)
        request.state = "done"

    def run_to_end(self, seconds=60.0, step=0.1):
        until = self.now + seconds
        while self.now < until and any(map(self.in_state, ("waits", "holds", "runs"))):
            self.settle()
            for request in self.in_state("holds"):
                self.start_lease(request)
            for request in self.in_state("runs"):
                self.complete(request)
            self.settle()
            self.pass_time(step)

    # Effects.

    def _perform_shard(self, shard, effects):
        effects = list(effects)
        super()._perform_shard(shard, [each for each in effects if isinstance(each, queue_effects.ToScheduler)])
        for effect in effects:
            if isinstance(effect, queue_effects.Leased | queue_effects.Shed) and effect.edge == self.edges.get(shard):
                self._on_effect(shard, effect)

    def _on_effect(self, shard, effect):
        if isinstance(effect, queue_effects.Shed):
            request = self.requests[effect.ticket_id]
            if request.state == "waits" and request.shard == shard:
                request.state = "shed"
            return
        lease = effect.lease
        request = self.requests[lease.ticket_id]
        if request.state == "waits" and lease.attempt == request.attempt:
            request.state, request.lease = "holds", (lease.worker_id, lease.lease_id)
        elif request.state in {"left", "shed"}:
            self._perform_shard(shard, self.shards[shard].withdraw(effect.edge, [request.name]))
