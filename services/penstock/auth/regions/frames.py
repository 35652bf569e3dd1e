"""Frames between auth of two regions, and the values in them."""

from collections.abc import Iterable

from penstock.auth.regions.demand import Demand
from penstock.auth.regions.share import FLOOR, FULL, LargestShare, ShareRow
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1 import region_quota_pb2 as pb
from penstock.mesh.v1.admission_pb2 import OwnedPartitions
from penstock.mesh.v1.region_quota_pb2 import FollowRequest, FollowResponse

# Of the spending region.


def begin(partition: int, epoch: int, rows: Iterable[ShareRow]) -> FollowRequest:
    shares = [share_message(each) for each in rows]
    return FollowRequest(begin=pb.SharesBegin(partition=partition, epoch=epoch, shares=shares))


def demand(found: Demand) -> FollowRequest:
    return FollowRequest(demand=pb.ShareDemand(**found._asdict()))


def held(number: int, row: ShareRow) -> FollowRequest:
    return FollowRequest(held=pb.ShareHeld(share=share_message(row, number)))


def usage(report: pb.UsageReport) -> FollowRequest:
    return FollowRequest(usage=report)


# Of the home region.


def owned_partitions(owned: OwnedPartitions) -> FollowResponse:
    return FollowResponse(owned_partitions=owned)


def catalog(part: pb.AuthCatalogPart) -> FollowResponse:
    return FollowResponse(catalog=part)


def share(number: int, row: ShareRow) -> FollowResponse:
    return FollowResponse(share=share_message(row, number))


def share_rules(largest: LargestShare) -> FollowResponse:
    return FollowResponse(share_rules=pb.ShareRules(largest=largest.thousandths))


def usage_confirmed(number: int) -> FollowResponse:
    return FollowResponse(usage_confirmed=pb.UsageConfirmed(number=number))


def usage_refused(number: int, wrong: str) -> FollowResponse:
    return FollowResponse(usage_refused=pb.UsageRefused(number=number, field=wrong))


# Values.


def share_message(row: ShareRow, number: int = 0) -> pb.Share:
    return pb.Share(tenant_id=row.tenant_id, scope=row.scope, rates=row.rates, budgets=row.budgets, number=number)


def row_of(message: pb.Share, region: str) -> ShareRow:
    """Return the share of a region. Raises InvalidArgument."""
    if not message.tenant_id:
        raise InvalidArgument("a share is of a tenant", field="share.tenant_id")
    return ShareRow(message.tenant_id, message.scope, region, message.rates, message.budgets)


def largest_of(message: pb.ShareRules) -> int:
    """Return the largest share that one region can have. Raises InvalidArgument."""
    if not FLOOR.rates <= message.largest <= FULL:
        text = f"the largest share must be {FLOOR.rates} to {FULL} thousandths"
        raise InvalidArgument(text, field="share_rules.largest")
    return message.largest


def rows_of(message: pb.SharesBegin, region: str) -> list[ShareRow]:
    """Return the shares of a region in one partition. Raises InvalidArgument."""
    rows = [row_of(each, region) for each in message.shares]
    if any(partition_of(each.tenant_id) != message.partition for each in rows):
        raise InvalidArgument(f"a share is not of partition {message.partition}", field="begin.shares")
    return rows


def demand_of(message: pb.ShareDemand) -> Demand:
    """Return what a region uses and wants. Raises InvalidArgument."""
    if not message.tenant_id:
        raise InvalidArgument("a demand is of a tenant", field="demand.tenant_id")
    return Demand(
        tenant_id=message.tenant_id,
        scope=message.scope,
        used_rates=message.used_rates,
        wanted_rates=message.wanted_rates,
        used_budgets=message.used_budgets,
        wanted_budgets=message.wanted_budgets,
    )
