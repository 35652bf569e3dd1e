"""Changes of auth's store, and writing them."""

import asyncio
from dataclasses import replace

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import OUTCOME_LOST, Charge, Reservation, ReservationRequest
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store.opening import opened_store
from penstock.auth.store.store import Charged

ACME_TENANT = Tenant(tenant_id="acme", weight=2.5, tokens_per_minute=600)
ACME_KEY = Key(
    key_id="k", tenant_id="acme", digest=b"\x00" * 32, created_at=1.5, display_name="für Anna", expires_at=9.0
)


def reservation(number: int = 1) -> Reservation:
    request = ReservationRequest(
        request_id=f"request-{number}",
        tenant_id="acme",
        key_id="k",
        edge_id="edge-1",
        model="m",
        prompt_tokens=10,
        max_output_tokens=20,
    )
    return Reservation(reservation_id=f"r-{number}", request=request, reserved_at=1.25, expires_at=101.25)


def charged(number: int = 1, *, outcome: str = "stop", output: int = 7) -> Charged:
    charge = Charge(
        reservation=reservation(number), prompt_tokens=10, output_tokens=output, outcome=outcome, settled_at=2.5
    )
    return Charged(charge, Balance("acme", 0, 0, 10, output, 1))


def corrected(change: Charged) -> Charged:
    """Return the correction of a lost charge."""
    return change._replace(charge=replace(change.charge, is_correction=True))


def part(request_id, answer_id="", *, emitted=0, made=0, charged=None, outcome="cancelled") -> Charge:
    """Return the charge of one request of an answer."""
    own = replace(
        reservation().request,
        request_id=request_id,
        answer_id=answer_id,
        emitted_tokens=emitted,
        fingerprint=b"f" * 16,
        max_output_tokens=200,
    )
    is_lost = outcome == OUTCOME_LOST
    return Charge(
        reservation=replace(reservation(), reservation_id=request_id, request=own),
        prompt_tokens=0 if is_lost else 10,
        output_tokens=made if charged is None else charged,
        made_tokens=made,
        outcome=outcome,
        settled_at=2.5,
    )


async def kept(store, change) -> None:
    """Wait until `change` is persisted. Raises its error."""
    done = asyncio.get_running_loop().create_future()
    store.write(change, lambda error: done.set_exception(error) if error else done.set_result(None))
    await done


async def stored_state(path):
    async with opened_store(path) as (_, state):
        return state
