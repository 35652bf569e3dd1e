"""Connections of auth to its database, each with the name of its owner."""

from penstock.chassis.database import postgres
from penstock.chassis.database.location import StoreLocation


def application_name(owner: str) -> str:
    """Return the name of an owner's sessions in pg_stat_activity, at most 63 bytes."""
    return f"penstock-auth {owner}"[-63:]


def connect(location: StoreLocation, owner: str) -> postgres.StoreConnection:
    """Connect as `owner`. Transactions are begun explicitly. Raises psycopg.Error."""
    return postgres.connect(location, application_name(owner))
