"""Regions that share the limits of one tenant: real cores, messages with a delay, stores that lose what waits.

It does what the shells do: a raise is stored before it is sent, and a change is stored before it is confirmed.
"""

from functools import partial
from itertools import count

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.prices import PriceList
from penstock.auth.quota.rejection import LimitsExceeded
from penstock.auth.quota.reservation import ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.auth.regions.granted import GrantedShares
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.share import FULL, Share, ShareRow
from penstock.mesh.partitions import partition_of

TENANT = "acme"
PARTITION = partition_of(TENANT)
DELAY_S = 0.1  # s; of a message
WRITE_S = 0.05  # s; of a change of the store


class RegionStore:
    """What is written, and what waits. A restart loses what waits."""

    def __init__(self):
        self.rows, self.balance, self.uses, self.live, self.waiting = {}, None, {}, {}, []

    def write(self, change, on_stored=lambda: None):
        self.waiting.append((change, on_stored))

    def commit(self):
        waiting, self.waiting = self.waiting, []
        for change, _ in waiting:
            change()
        for _, on_stored in waiting:
            on_stored()

    def save(self, table, row=None):
        """Return the change that writes the state of the tenant as it is now."""
        quota = table.quota(TENANT)
        balance, scope = quota.balance, quota.scope()
        use = scope.use if scope else None

        def change():
            self.balance = balance
            if use:
                self.uses[""] = use
            if row:
                self.rows[row.region] = row

        return change


class Region:
    """One region with its process and its store. The home region has `regions`."""

    def __init__(self, world, name, skew, regions=None):
        self.world, self.name, self.skew, self.regions = world, name, skew, regions
        self.store = RegionStore()
        self.restart()

    @property
    def now(self):
        return self.world.now + self.skew

    def restart(self):
        self.store.waiting.clear()
        is_home = self.regions is not None
        self.shares = GrantedShares(self.regions) if is_home else HeldShares(self.name)
        self.shares.restore(self.store.rows.values())
        self.share_of = self.shares.own if is_home else self.shares.of
        self.table = ReservationTable(ttl=1e9, prices=PriceList(), share_of=self.share_of, largest=self.shares.largest)
        self.table.put_tenant(self.world.tenant, self.now, self.store.balance, self.store.uses.values())
        self.table.restore(list(self.store.live.values()), [])

    @property
    def share(self):
        return self.share_of(TENANT, "")

    @property
    def most(self):
        """The most that the region believes to have now or after a restart."""
        stored = self.store.rows.get(self.name)
        return self.share.at_least(stored.share) if stored else self.share

    def apply(self):
        self.table.set_share(TENANT, "", self.share, self.now)

    def reserve(self, tokens):
        """Reserve and write it. Return the reservation; None if a limit refuses it."""
        try:
            return self.try_to_reserve(tokens)
        except LimitsExceeded:
            return None

    def try_to_reserve(self, tokens):
        """Reserve and write it. Raises LimitsExceeded."""
        request_id = f"{self.name}{next(self.world.numbers)}"
        names = {"tenant_id": TENANT, "key_id": "k", "edge_id": "e", "model": "m"}
        request = ReservationRequest(request_id=request_id, prompt_tokens=tokens, max_output_tokens=0, **names)
        reservation = self.table.reserve(request, request_id, self.now)
        self.store.write(self.store.save(self.table))
        self.store.commit()
        self.store.live[request_id] = reservation
        return reservation

    def settle(self, reservation, tokens):
        if self.table.settle(reservation.reservation_id, tokens, 0, "stop", self.now):
            self.store.live.pop(reservation.reservation_id)
            self.store.write(self.store.save(self.table))


class SharedRegions:
    """A home region and others that spend from its limits."""

    def __init__(self, others=1, *, start=1_800_000_000.0, skews=(0.0, 0.0, 0.0, 0.0), **limits):
        self.now, self.numbers = start, count(1)
        self.tenant = Tenant(tenant_id=TENANT, **limits)
        names = [f"r{each}" for each in range(others)]
        self.home = Region(self, "home", skews[0], names)
        self.others = {name: Region(self, name, skew) for name, skew in zip(names, skews[1:], strict=False)}
        self.regions = [self.home, *self.others.values()]
        self.streams = dict.fromkeys(names, 0)  # number of the stream of each region; 0: cut
        self.messages = []  # time, stream, region, action
        self.changes = 0
        self._stream_numbers = count(1)
        self._next_tick, self._next_commit = start, start
        for name in names:
            self.connect(name)

    def connect(self, name):
        """End the stream of a region, and begin another one."""
        self.cut(name)
        self.others[name].shares.largest.thousandths = self.home.shares.largest.thousandths
        region, self.streams[name] = self.others[name], next(self._stream_numbers)
        self.send(name, partial(self._begin, name, region.shares.rows_of(PARTITION)))

    def cut(self, name):
        self.streams[name] = 0
        self.home.shares.on_end(name, PARTITION)

    def restart(self, region):
        region.restart()
        for name in self.others if region is self.home else [region.name]:
            if self.streams[name] or region is self.home:
                self.connect(name)

    def set_tenant(self, **limits):
        self.tenant = Tenant(tenant_id=TENANT, **limits)
        for each in self.regions:
            each.table.put_tenant(self.tenant, each.now)

    def send(self, name, action):
        self.messages.append((self.now + DELAY_S, self.streams[name], name, action))

    def advance(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.05)
            due = [each for each in self.messages if each[0] <= self.now]
            self.messages = [each for each in self.messages if each[0] > self.now]
            for _, stream, name, action in due:
                if stream and stream == self.streams[name]:
                    action()
            if self.now >= self._next_commit:
                self._next_commit = self.now + WRITE_S
                for each in self.regions:
                    each.store.commit()
            if self.now >= self._next_tick:
                self._next_tick += 1.0
                self._tick()
            self.check()

    def _tick(self):
        for name, region in self.others.items():
            for demand in region.table.pop_demands(region.now):
                if self.streams[name]:
                    self.send(name, partial(self._on_demand, name, demand))
        home = self.home
        in_use = partial(home.table.share_in_use, now=home.now)
        changes = home.shares.decide(home.table.pop_demands(home.now), in_use, home.now)
        for change in changes:
            self.changes += 1
            home.apply()
            name = change.row.region
            send = partial(self._send_share, name, self.streams[name], change)
            if change.is_raise:
                home.store.write(home.store.save(home.table, change.bound), send)
            else:
                send()

    def _on_demand(self, name, demand):
        self.home.shares.on_demand(name, demand, self.home.now)

    def _send_share(self, name, stream, change):
        if stream == self.streams[name]:
            self.send(name, partial(self._on_share, name, change))

    def _begin(self, name, rows):
        self.home.store.write(self._put_bounds(self.home.shares.on_begin(name, PARTITION, rows)))

    def _put_bounds(self, rows):
        self.home.apply()
        changes = [self.home.store.save(self.home.table, row) for row in rows]
        return lambda: [each() for each in changes]

    def _on_share(self, name, change):
        region = self.others[name]
        held = region.shares.on_share(change.row, region.table.share_in_use(TENANT, "", region.now))
        region.apply()
        stream = self.streams[name]

        def confirm():
            region.shares.on_stored(held)
            if stream == self.streams[name]:
                self.send(name, partial(self._on_held, name, change.number, held))

        region.store.write(region.store.save(region.table, held), confirm)

    def _on_held(self, name, number, held: ShareRow):
        self.home.store.write(self._put_bounds(self.home.shares.on_held(name, number, held)))

    def check(self):
        """Check that the shares that anyone may believe make at most the whole."""
        assert self.home.shares.excess_claims == 0
        stored = GrantedShares(list(self.others))
        stored.restore(self.home.store.rows.values())
        others = [each.most for each in self.others.values()]
        for own in (self.home.share, stored.own(TENANT, "")):
            total = Share(own.rates + sum(each.rates for each in others), own.budgets + sum(e.budgets for e in others))
            assert max(total) <= FULL, (own, others)
