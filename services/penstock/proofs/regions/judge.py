"""Judging of the proof of regions: windows of time, slots in use, and limits over several regions. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import pstdev
from typing import NamedTuple

from penstock.mesh.regions import REGION_NOT_ALLOWED
from penstock.proofs.checks.quota import LedgerEntry

AWAY_PREFIX = "region:"  # of the worker in a row of a request that another region has served


class RegionCharge(NamedTuple):
    """One row of the ledger of one region, with its times in Unix s of auth."""

    entry: LedgerEntry
    output_tokens: int
    worker: str

    @property
    def is_away(self) -> bool:
        """Whether another region served the request."""
        return self.worker.startswith(AWAY_PREFIX)

    @property
    def is_served(self) -> bool:
        return bool(self.worker)


class Window(NamedTuple):
    """The requests that began within one window."""

    requests: int
    away: int  # served by another region

    @property
    def share(self) -> float:
        return self.away / self.requests if self.requests else 0.0


def windows_of(charges: Iterable[RegionCharge], begin: float, end: float, length_s: float) -> list[Window]:
    """Count the served requests by the window in which they began. Only whole windows between `begin` and `end`."""
    count = int((end - begin + 1e-9) / length_s)
    requests, away = Counter[int](), Counter[int]()
    for each in charges:
        place = int((each.entry.reserved_at - begin) // length_s)
        if each.is_served:
            requests[place] += 1
            away[place] += each.is_away
    return [Window(requests[place], away[place]) for place in range(count)]


def share_deviation(windows: Sequence[Window]) -> float:
    """Return the standard deviation of the shares that other regions served; 0 without windows."""
    return pstdev(each.share for each in windows) if windows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCount:
    """What the workers of a region have done up to a time, or between two times."""

    at: float  # s; between two times: their distance
    steps: float
    tokens: float
    busy_s: float  # in steps
    slots: int  # of one worker

    def since(self, earlier: "WorkCount") -> "WorkCount":
        return WorkCount(
            at=self.at - earlier.at,
            steps=self.steps - earlier.steps,
            tokens=self.tokens - earlier.tokens,
            busy_s=self.busy_s - earlier.busy_s,
            slots=self.slots,
        )

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.at if self.at else 0.0

    @property
    def step_share(self) -> float:
        """The share of the time that was spent in steps, added up over the workers."""
        return self.busy_s / self.at if self.at else 0.0

    @property
    def slot_share(self) -> float:
        """The share of the slots that had a token in each step."""
        return self.tokens / (self.slots * self.steps) if self.steps else 0.0


def idle_share(work: WorkCount, saturated: WorkCount) -> float:
    """Return the share of a region's capacity that was left idle.

    Slots without a token in a step are idle, and so is time without a step. The time between two steps that a saturated
    worker needs as well is not.
    """
    in_steps = min(1.0, work.step_share / saturated.step_share) if saturated.step_share else 0.0
    return 1.0 - in_steps * work.slot_share


class MinuteCount(NamedTuple):
    """What all regions together have admitted of one tenant in one minute."""

    requests: int
    tokens: int


def minutes_of(entries: Iterable[LedgerEntry], begin: float, end: float) -> list[MinuteCount]:
    """Count by the minutes since `begin`, of which the last may be a part."""
    requests, tokens = Counter[int](), Counter[int]()
    for each in entries:
        minute = int((each.reserved_at - begin) // 60)
        requests[minute] += 1
        tokens[minute] += each.taken_tokens
    return [MinuteCount(requests[each], tokens[each]) for each in range(max(1, -int(-(end - begin) // 60)))]


@dataclass(slots=True, kw_only=True)
class ResidencyFindings:
    """Signs of a tenant in a region that it does not allow, in requests."""

    charged: int = 0  # rows in the ledger of that region
    ran: int = 0  # ended at an edge of that region, guests included, other than by a refusal for the region
    refused: int = 0  # for the region, by an edge of that region
    away: int = 0  # rows in the ledger of the allowed region that name another one as the worker


def find_outside(
    tenant_id: str,
    charges: Mapping[str, Sequence[RegionCharge]],
    ended: Mapping[str, Iterable[Mapping[str, str]]],
    allowed: str,
) -> ResidencyFindings:
    """Find requests of a tenant outside of its region `allowed`.

    charges: ledgers by region. ended: the records of ended requests of the edges, by region.
    """
    findings = ResidencyFindings()
    for region, rows in charges.items():
        found = [each for each in rows if each.entry.tenant_id == tenant_id]
        if region == allowed:
            findings.away += sum(each.is_away for each in found)
        else:
            findings.charged += len(found)
    for region, records in ended.items():
        for each in records if region != allowed else ():
            if each["tenant"] == tenant_id:
                is_refused = each["reason"] == REGION_NOT_ALLOWED and not each["worker_id"]
                findings.refused += is_refused
                findings.ran += not is_refused
    return findings
