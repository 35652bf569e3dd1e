"""Residency: the regions in which requests of a tenant may be served. Reasons of errors about regions."""

from collections.abc import Collection

REGION_NOT_ALLOWED = "REGION_NOT_ALLOWED"
REGION_DRAINED = "REGION_DRAINED"  # of an offer to a region that an operator has drained


def is_region_allowed(allowed: Collection[str], region: str) -> bool:
    """Return whether requests may be served in a region. `allowed` is empty if they may be in all.

    A process whose region is not set is in none of the named ones.
    """
    return not allowed or region in allowed


def refusal_text(tenant_id: str, allowed: Collection[str], region: str) -> str:
    """Return the message of an error with the reason `REGION_NOT_ALLOWED`."""
    here = f"this is region {region}" if region else "the region of this process is not set (PENSTOCK_REGION)"
    advice = "send the request to one of them, or ask for `penstock tenants put`"
    return f"tenant {tenant_id} allows the regions {', '.join(allowed)}, and {here}: {advice}"
