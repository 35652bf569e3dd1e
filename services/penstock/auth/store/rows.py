"""Rows of the store as values, and values as rows. The order of columns is the same in every kind of store."""

from dataclasses import replace
from typing import Any

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.prices import Price
from penstock.auth.quota.reservation import Charge, Metering, Reservation, ReservationRequest
from penstock.auth.quota.scope_quota import ScopeUse
from penstock.auth.regions.share import ShareRow
from penstock.auth.store.policies import policy_of, policy_text

Row = tuple[Any, ...]

TENANT_COLUMNS = "tenant_id, priority, weight, requests_per_minute, tokens_per_minute, concurrent_requests, policy"
KEY_COLUMNS = "key_id, tenant_id, digest, created_at, display_name, expires_at, revoked_at, policy"
BALANCE_COLUMNS = "tenant_id, requests_full_at, tokens_full_at, prompt_tokens, output_tokens, requests"
RESERVATION_COLUMNS = """
    reservation_id, request_id, tenant_id, key_id, edge_id, model, prompt_tokens, max_output_tokens, reserved_at,
    expires_at, answer_id, emitted_tokens, fingerprint, priority, is_delegated
"""
PRICED_RESERVATION_COLUMNS = f"{RESERVATION_COLUMNS}, reserved_nanos"
CHARGED_RESERVATION_COLUMNS = """
    reservation_id, request_id, tenant_id, key_id, edge_id, model, reserved_prompt_tokens, reserved_output_tokens,
    reserved_at, expires_at, answer_id, emitted_tokens, fingerprint, priority, is_delegated
"""
LATEST_CHARGE_COLUMNS = f"{CHARGED_RESERVATION_COLUMNS}, settled_at, prompt_tokens, output_tokens, outcome, made_tokens"
SHARE_COLUMNS = ", ".join(ShareRow._fields)
SCOPE_USE_COLUMNS = ", ".join(ScopeUse._fields)
PRICE_COLUMNS = ", ".join(Price._fields)
LEDGER_COLUMNS = """
    reservation_id, request_id, tenant_id, key_id, edge_id, model, reserved_prompt_tokens, reserved_output_tokens,
    reserved_at, expires_at, settled_at, prompt_tokens, output_tokens, outcome, answer_id, emitted_tokens, fingerprint,
    made_tokens, cached_tokens, price_nanos, worker, region, priority, is_delegated
"""
GRANT_USE_COLUMNS = "grant_id, request_id, reservation_id, tokens, token_limit, forget_at"


def tenant_row(tenant: Tenant) -> Row:
    limits = (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.concurrent_requests)
    return (tenant.tenant_id, tenant.priority, tenant.weight, *limits, policy_text(tenant.policy))


def tenant_of(row: Row) -> Tenant:
    names = ("tenant_id", "priority", "weight", "requests_per_minute", "tokens_per_minute", "concurrent_requests")
    return Tenant(**dict(zip(names, row[:-1], strict=True)), policy=policy_of(row[-1]))


def key_row(key: Key) -> Row:
    times = (key.created_at, key.display_name, key.expires_at, key.revoked_at)
    return (key.key_id, key.tenant_id, key.digest, *times, policy_text(key.policy))


def key_of(row: Row) -> Key:
    names = ("key_id", "tenant_id", "digest", "created_at", "display_name", "expires_at", "revoked_at")
    return Key(**dict(zip(names, row[:-1], strict=True)), policy=policy_of(row[-1]))


def reservation_row(reservation: Reservation) -> Row:
    """Return a row of reservations, in the order of `PRICED_RESERVATION_COLUMNS`."""
    columns = _reservation_columns(reservation, reservation.request.max_output_tokens)
    return (*columns, reservation.reserved_nanos or 0)


def _reservation_columns(reservation: Reservation, output_tokens: int) -> Row:
    request = reservation.request
    return (
        reservation.reservation_id,
        *(request.request_id, request.tenant_id, request.key_id, request.edge_id, request.model),
        *(request.prompt_tokens, output_tokens),
        *(reservation.reserved_at, reservation.expires_at),
        *(request.answer_id, request.emitted_tokens, request.fingerprint),
        *(request.priority, request.is_delegated),
    )


def reservation_of(row: Row) -> Reservation:
    names = ("request_id", "tenant_id", "key_id", "edge_id", "model", "prompt_tokens", "max_output_tokens")
    of_answer = ("answer_id", "emitted_tokens", "fingerprint", "priority")
    values = dict(zip((*names, *of_answer), (*row[1:8], *row[10:14]), strict=True))
    request = ReservationRequest(**values, is_delegated=bool(row[14]))
    return Reservation(reservation_id=row[0], request=request, reserved_at=row[8], expires_at=row[9])


def priced_reservation_of(row: Row) -> Reservation:
    """Return the reservation of a row with `PRICED_RESERVATION_COLUMNS`."""
    reservation = reservation_of(row)
    return replace(reservation, metering=Metering(row[15])) if row[15] else reservation


def charged_reservation_of(row: Row) -> Reservation:
    """Return the reservation of a ledger row, whose reserved output includes the emitted tokens."""
    reservation = reservation_of(row)
    request = reservation.request
    emitted = request.max_chargeable_output_tokens - request.max_output_tokens
    return replace(reservation, request=replace(request, max_output_tokens=request.max_output_tokens - emitted))


def charge_row(charge: Charge) -> Row:
    """Return a row of the ledger, in the order of its columns."""
    reserved = _reservation_columns(charge.reservation, charge.reservation.request.max_chargeable_output_tokens)
    spent = (charge.settled_at, charge.prompt_tokens, charge.output_tokens, charge.outcome)
    served = (charge.cached_tokens, charge.price_nanos, charge.worker, charge.region)
    return (*reserved[:10], *spent, *reserved[10:13], charge.made_tokens, *served, *reserved[13:])


def charge_of(row: Row) -> Charge:
    """Return the charge of a row with `LATEST_CHARGE_COLUMNS`."""
    names = ("settled_at", "prompt_tokens", "output_tokens", "outcome", "made_tokens")
    return Charge(reservation=charged_reservation_of(row), **dict(zip(names, row[15:], strict=True)))
