"""Checks of auth replicas that share a database: owners of partitions, tenants' charges and limits."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.chassis.security.identity import START_SEPARATOR
from penstock.faults.checks.checker import LOST_OUTCOME, Violation
from penstock.faults.grpc.network import Network
from penstock.faults.plan import PlannedTenant
from penstock.faults.world.host_clock import MAX_DRIFT
from penstock.faults.world.process import Process
from penstock.faults.world.stores.shared_database import SharedDatabase

MAX_UNEVENNESS = 1  # partitions that one replica may own more than another one at rest
S_PER_MINUTE = 60.0

_LEDGER_OF_TENANT = """
    SELECT prompt_tokens, output_tokens, made_tokens, reserved_prompt_tokens, reserved_output_tokens,
        outcome, grant_id IS NOT NULL
    FROM ledger LEFT JOIN grant_uses USING (reservation_id) WHERE tenant_id = ?
"""


class Use(NamedTuple):
    """Tokens that one request took from the limit of its tenant, and those that it was charged."""

    tokens: int
    charged: int
    is_deferred: bool  # an edge admitted it under a grant, beyond the limit if necessary


def misplaced_partitions(database: SharedDatabase, auths: Iterable[Process], network: Network) -> Iterator[Violation]:
    """Yield partitions without exactly one live owner, an uneven distribution, and replicas that serve others.

    auths: the processes that share the database.
    """
    replicas = {f"{each.name}{START_SEPARATOR}{each.start_count}": each for each in auths}
    owned = Counter(row.owner for row in database.rows.values())
    for owner in owned.keys() - replicas.keys():
        yield Violation("partition", f"{owned[owner]} partitions have the owner {owner!r}, which does not run")
    counts = [owned[owner] for owner in replicas]
    if max(counts) - min(counts) > MAX_UNEVENNESS:
        yield Violation("partition", f"the replicas own {counts} partitions")
    for owner, process in replicas.items():
        server = network.listeners.get(process.address)
        served = server.figures().get("partitions", -1.0) if server else -1.0
        if served != owned[owner]:
            yield Violation("partition", f"{owner} owns {owned[owner]} partitions and serves {served}")


def check_token_limits(
    database: SharedDatabase, tenants: Sequence[PlannedTenant], elapsed_s: float
) -> Iterator[Violation]:
    """Check that auth admitted no more tokens of a tenant than its limit and its budget allow in `elapsed_s` s."""
    for tenant in tenants:
        admitted = [each for each in _uses(database, tenant.tenant_id) if not each.is_deferred]
        charged = sum(each.charged for each in admitted)
        if tenant.tokens_per_month and charged > tenant.tokens_per_month:
            text = f"was charged {charged} tokens, of {tenant.tokens_per_month} in the month"
            yield Violation("limit", f"{tenant.tenant_id} {text}")
        used = sum(each.tokens for each in admitted)
        drift = 1.0 + 2 * MAX_DRIFT  # of the clocks of two owners
        allowed = tenant.tokens_per_minute * (1.0 + drift * elapsed_s / S_PER_MINUTE)
        if tenant.tokens_per_minute and used > allowed:
            yield Violation("limit", f"{tenant.tenant_id} used {used} tokens in {elapsed_s:.1f} s, of {allowed:.0f}")


def _uses(database: SharedDatabase, tenant_id: str) -> Iterator[Use]:
    for prompt, output, made, reserved_prompt, reserved_output, outcome, is_deferred in database.connection.execute(
        _LEDGER_OF_TENANT, (tenant_id,)
    ):
        is_lost = outcome == LOST_OUTCOME
        taken = reserved_prompt + reserved_output if is_lost else prompt + made
        yield Use(taken, prompt + output, bool(is_deferred))
