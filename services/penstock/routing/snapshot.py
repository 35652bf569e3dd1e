"""A snapshot: the complete configuration of the proxies at one time, checked for consistency."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from penstock.routing.resources.types import Resource, ResourceType

# Proxies request these only if another resource refers to them, so one without a reference is a mistake.
REFERENCED_TYPES = frozenset({ResourceType.SECRET, ResourceType.ENDPOINT, ResourceType.ROUTE})


class SnapshotInconsistent(ValueError):
    """The resources contradict each other; serving them would leave a proxy with half a configuration."""

    def __init__(self, faults: Iterable[str]) -> None:
        super().__init__("; ".join(faults))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable resources by type and name. Two snapshots differ in those types whose versions differ."""

    by_type: Mapping[ResourceType, Mapping[str, Resource]]
    versions: Mapping[ResourceType, str] = field(init=False)

    def __post_init__(self) -> None:
        versions = {kind: _digest(self.by_type[kind].values()) for kind in ResourceType}
        object.__setattr__(self, "versions", MappingProxyType(versions))

    @classmethod
    def of(cls, resources: Iterable[Resource]) -> Self:
        """Return the snapshot of these resources. Raises SnapshotInconsistent."""
        by_type: dict[ResourceType, dict[str, Resource]] = {kind: {} for kind in ResourceType}
        for resource in resources:
            if resource.name in by_type[resource.type]:
                raise SnapshotInconsistent([f"two resources of type {resource.type.name} are named {resource.name!r}"])
            by_type[resource.type][resource.name] = resource
        return cls(MappingProxyType({kind: MappingProxyType(named) for kind, named in by_type.items()})).consistent()

    def consistent(self) -> Self:
        """Return the snapshot itself. Raises SnapshotInconsistent with all errors."""
        if faults := [*self._dangling(), *self._orphans()]:
            raise SnapshotInconsistent(faults)
        return self

    def differs_from(self, other: Self | None) -> bool:
        return other is None or self.versions != other.versions

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.by_type[kind])} {kind.name}" for kind in ResourceType)
        return f"<Snapshot {counts}>"

    def _resources(self) -> Iterator[Resource]:
        for named in self.by_type.values():
            yield from named.values()

    def _dangling(self) -> Iterator[str]:
        for resource in self._resources():
            for kind, name in sorted(resource.references):
                if name not in self.by_type[kind]:
                    yield f"{resource.type.name} {resource.name!r} refers to {kind.name} {name!r}, which does not exist"

    def _orphans(self) -> Iterator[str]:
        referred = {reference for resource in self._resources() for reference in resource.references}
        for resource in self._resources():
            if resource.type in REFERENCED_TYPES and (resource.type, resource.name) not in referred:
                yield f"no resource refers to {resource.type.name} {resource.name!r}, so no proxy would request it"


def _digest(resources: Iterable[Resource]) -> str:
    lines = sorted(f"{resource.name}={resource.version}" for resource in resources)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
