"""Connections to a store that read usage."""

from penstock.auth.store.sqlite.usage import SqliteUsage
from penstock.auth.store.usage_connection import Connect
from penstock.chassis.database.location import StoreLocation


def usage_connections(location: StoreLocation) -> Connect | None:
    """Return what connects to a store; None if it is in memory, where a second connection finds nothing."""
    if location.is_postgres:
        from penstock.auth.store.postgres.usage import connect_usage  # noqa: PLC0415  # its driver loads only if used

        return lambda timeout: connect_usage(location, timeout)
    return (lambda timeout: SqliteUsage(location.path, timeout)) if location.is_file else None
