"""Mutants of regions that share limits: bugs in the transfer of shares, the catalog and the reports of usage."""

from dataclasses import replace

from mutant_registry import mutant
from penstock.auth.quota.shared_quota import SharedScopeQuota
from penstock.auth.regions.granted import GrantedShares
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.home.granting import ShareGrants
from penstock.auth.regions.home.service import RegionQuotas
from penstock.auth.regions.share import Share
from penstock.auth.regions.spending.exchanges import ShareExchanges
from penstock.auth.regions.usage_report import report_of
from penstock.auth.regions.usage_reporter import UsageReporter
from penstock.auth.store.sqlite import sql
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.plan import FaultKind, PlannedFault
from penstock.faults.regions.home_plans import random_home_faults, with_shared_limits
from penstock.faults.regions.plans import linked, with_regions

FOLLOW = "penstock.mesh.v1.RegionQuotaService/Follow"


def shared_limits(plan, rng):
    return with_shared_limits(replace(with_regions(plan, rng), faults=()), rng)


def failing_homes(plan, rng):
    return replace(shared_limits(plan, rng), faults=random_home_faults(rng))


def full_disks(plan, rng):
    """The disk of one region is full from the moment at which a share is on its way."""
    faults = tuple(
        PlannedFault(
            kind=FaultKind.DISK_FULL,
            duration_s=rng.uniform(0.5, 2.0),
            victim_tier="auth",
            victim_pick=rng.random(),
            failpoint=Failpoint(FOLLOW, TO_CLIENT, "share"),
            frame_number=number,
        )
        for number in (1, 2, 3)
    )
    return replace(shared_limits(plan, rng), faults=faults)


def full_databases(plan, rng):
    """Two replicas of each region lose their partitions, because their database is full, and take them again."""
    planned = shared_limits(plan, rng)
    shapes = [replace(each, auths=2) for each in planned.shape.regions]
    home = replace(planned.border.home, databases=(True,) * len(shapes))
    fault = PlannedFault(
        kind=FaultKind.DISK_FULL,
        duration_s=rng.uniform(3.2, 4.5),
        victim_tier="auth",
        victim_pick=rng.random(),
        failpoint=Failpoint(FOLLOW, TO_CLIENT, "share"),
        frame_number=rng.choice((1, 2, 3)),
    )
    return replace(planned, shape=linked(shapes), border=replace(planned.border, home=home), faults=(fault,))


def lost_streams(plan, rng):
    """The streams between auth of two regions are lost, some with a report on its way."""
    faults = tuple(
        PlannedFault(
            kind=FaultKind.RESET,
            duration_s=0.0,
            victim_tier="auth",
            victim_pick=0.0,
            failpoint=Failpoint(FOLLOW, TO_SERVER, kind),
            frame_number=number,
        )
        for kind, number in (("usage", 1), ("usage", 2), ("held", rng.choice((2, 3))))
    )
    return replace(shared_limits(plan, rng), faults=faults)


# Transfers.


@mutant(GrantedShares, "decide", mutate_plan=failing_homes)
def the_home_spends_what_a_region_has_not_given_up(decide, self, *given):
    changes = decide(self, *given)
    for each in changes:
        self._grants((each.row.tenant_id, each.row.scope)).set_bound(each.row.region, each.row.share)
    return changes


@mutant(GrantedShares, "on_held", mutate_plan=shared_limits)
def a_lowering_is_counted_twice(on_held, self, region, number, row):
    before = self._grants((row.tenant_id, row.scope)).bound(region)
    rows = on_held(self, region, number, row)
    for each in rows:
        twice = Share(*(2 * now - former for now, former in zip(each.share, before, strict=True)))
        self._grants((each.tenant_id, each.scope)).set_bound(region, twice)
    return rows


@mutant(ShareGrants, "_write", mutate_plan=full_disks)
def a_raise_is_sent_before_it_is_stored(write, self, row, on_persisted):
    on_persisted(None)
    write(self, row, lambda _: None)


@mutant(ShareExchanges, "_write", mutate_plan=full_disks)
def a_lowering_is_confirmed_before_it_is_stored(write, self, share):
    write(self, share)
    self._on_written(share, None)


@mutant(ShareExchanges, "_write_again", mutate_plan=full_databases)
def a_share_is_stored_after_its_partition_has_moved(_, self, share):
    self._write(share)


@mutant(HeldShares, "on_share", mutate_plan=shared_limits)
def a_share_is_added_to_the_former_one(on_share, self, row, in_use):
    former = self.of(row.tenant_id, row.scope)
    return on_share(self, row._replace(rates=row.rates + former.rates, budgets=row.budgets + former.budgets), in_use)


@mutant(HeldShares, "rows_of", mutate_plan=lost_streams)
def a_region_does_not_say_what_it_holds(*_):
    return []


@mutant(SharedScopeQuota, "_enforce", mutate_plan=shared_limits)
def a_region_enforces_the_whole_limits_of_keys_and_models(enforce, self):
    enforce(self)
    if self.name:
        self._concurrent_limit, self._budgets = self.policy.limits.concurrent_requests, self.policy.budgets


# Catalog and usage.


@mutant(RegionQuotas, "send_changes", mutate_plan=shared_limits)
def changes_of_the_catalog_are_not_sent(_, self):
    """Regions have the catalog of their first contact."""


@mutant(sql, "put_totals", mutate_plan=shared_limits)
def a_report_adds_to_the_totals(put_totals, connection, change):
    former = {
        row[:4]: row[4:]
        for row in connection.execute(
            "SELECT hour, tenant_id, key_id, model, requests, prompt_tokens, cached_tokens, output_tokens, price_nanos,"
            " completed, cancelled, shed, failed, lost FROM hourly_usage WHERE region = ?",
            (change.region,),
        )
    }
    totals = tuple(
        each._replace(counters=tuple(map(sum, zip(each.counters, former[each[:4]], strict=True))))
        if each[:4] in former
        else each
        for each in change.totals
    )
    put_totals(connection, change._replace(totals=totals))


@mutant(UsageReporter, "_is_confirmed", mutate_plan=lost_streams)
async def a_report_is_forgotten_before_it_is_confirmed(_, self, totals):
    self._number += 1
    self.send(report_of(self._number, totals))
    return True


HOME_MUTANTS = (
    the_home_spends_what_a_region_has_not_given_up,
    a_lowering_is_counted_twice,
    a_raise_is_sent_before_it_is_stored,
    a_lowering_is_confirmed_before_it_is_stored,
    a_share_is_stored_after_its_partition_has_moved,
    a_share_is_added_to_the_former_one,
    a_region_does_not_say_what_it_holds,
    a_region_enforces_the_whole_limits_of_keys_and_models,
    changes_of_the_catalog_are_not_sent,
    a_report_adds_to_the_totals,
    a_report_is_forgotten_before_it_is_confirmed,
)
