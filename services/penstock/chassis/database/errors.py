"""Errors at the opening of a store. Each ends the start of its process."""

from penstock.chassis.config import ConfigError


class StoreUnusable(ConfigError):
    """The store cannot be opened or read."""


class StoreTooNew(ConfigError):
    """The store was written by a later release, whose schema this release does not know."""

    @classmethod
    def of(cls, version: int, supported: int) -> "StoreTooNew":
        return cls(f"the store has version {version}, and this release supports up to {supported}; upgrade this tier")
