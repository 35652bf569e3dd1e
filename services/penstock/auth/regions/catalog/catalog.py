"""The catalog as a value: what differs between two of them, and how it travels in parts. No I/O."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import DEFAULT_TENANT, Tenant
from penstock.auth.models.routes import Route
from penstock.auth.quota.prices import Price
from penstock.auth.regions.catalog.messages import (
    CatalogItem,
    CatalogName,
    entry_message,
    entry_name,
    entry_of,
    name_message,
    name_of,
)
from penstock.auth.store.store import (
    DeleteKey,
    DeletePrice,
    DeleteRoute,
    DeleteTenant,
    PutKey,
    PutPrice,
    PutRoute,
    PutTenant,
)
from penstock.mesh.v1.region_quota_pb2 import AuthCatalogPart

PART_ENTRIES = 200

Put = PutTenant | PutKey | PutPrice | PutRoute
Deletion = DeleteRoute | DeleteKey | DeletePrice | DeleteTenant
Name = TypeVar("Name")
Item = TypeVar("Item")


class Catalog(NamedTuple):
    """Everything that operators keep in the home region. A key that works on loopback only belongs to its region."""

    tenants: Mapping[str, Tenant]
    keys: Mapping[str, Key]
    prices: Mapping[str, Price]
    routes: Mapping[tuple[str, str], Route]

    @property
    def by_name(self) -> dict[CatalogName, CatalogItem]:
        """All items by their names, in the order in which they are created."""
        return {name_of(each): each for items in self for each in items.values()}


def catalog_of(
    tenants: Iterable[Tenant], keys: Iterable[Key], prices: Iterable[Price], routes: Iterable[Route]
) -> Catalog:
    return Catalog(
        {each.tenant_id: each for each in tenants},
        {each.key_id: each for each in keys if not each.loopback_only},
        {each.model: each for each in prices},
        {each.key: each for each in routes},
    )


def puts(present: Catalog, target: Catalog) -> list[Put]:
    """Return the changes that create and change the items of `target`, tenants before their keys.

    A revocation stays, because `target` may be of a moment before it.
    """
    found: list[Put] = [PutTenant(each) for each in _changed(present.tenants, target.tenants)]
    for each in _changed(present.keys, target.keys):
        known = present.keys.get(each.key_id)
        key = replace(each, revoked_at=known.revoked_at) if known and _is_revoked_before(known, each) else each
        if key != known and key.tenant_id in target.tenants:
            found.append(PutKey(key))
    found += [PutPrice(each) for each in _changed(present.prices, target.prices)]
    found += [PutRoute(each) for each in _changed(present.routes, target.routes)]
    return found


def _is_revoked_before(known: Key, key: Key) -> bool:
    return known.revoked_at is not None and key.revoked_at is None


def deletions(present: Catalog, target: Catalog) -> list[Deletion]:
    """Return the changes that delete what `target` lacks, tenants last and without a time."""
    lacking = present.tenants.keys() - target.tenants.keys() - {DEFAULT_TENANT}
    found: list[Deletion] = [DeleteRoute(*each) for each in sorted(present.routes.keys() - target.routes.keys())]
    found += [DeleteKey(each) for each in sorted(present.keys.keys() - target.keys.keys())]
    found += [DeletePrice(each) for each in sorted(present.prices.keys() - target.prices.keys())]
    return found + [DeleteTenant(each, 0.0) for each in sorted(lacking)]


def unknown_to(present: Catalog, target: Catalog, now: float) -> list[str]:
    """Return the tenants and usable keys of `present` that `target` lacks or has with another secret."""
    tenants = present.tenants.keys() - target.tenants.keys() - {DEFAULT_TENANT}
    keys = [each for each in present.keys.values() if each.ended_at > now and _lacks(target, each)]
    return sorted(f"tenant {each}" for each in tenants) + sorted(f"key {each.key_id}" for each in keys)


def _lacks(target: Catalog, key: Key) -> bool:
    other = target.keys.get(key.key_id)
    return other is None or (other.digest, other.tenant_id) != (key.digest, key.tenant_id)


def _changed(before: Mapping[Name, Item], after: Mapping[Name, Item]) -> list[Item]:
    return [each for name, each in after.items() if (known := before.get(name)) is not each and known != each]


def whole_parts(catalog: Catalog) -> Iterator[AuthCatalogPart]:
    """Yield the parts that make the whole catalog."""
    parts = [AuthCatalogPart(entries=map(entry_message, each)) for each in _chunks(list(catalog.by_name.values()))]
    parts = parts or [AuthCatalogPart()]
    parts[0].is_first = parts[-1].is_last = True
    yield from parts


def change_parts(before: Catalog, after: Catalog) -> Iterator[AuthCatalogPart]:
    """Yield the parts that turn one catalog into another one."""
    former, present = before.by_name, after.by_name
    for each in _chunks(_changed(former, present)):
        yield AuthCatalogPart(entries=map(entry_message, each))
    for each in _chunks([item for name, item in former.items() if name not in present]):
        yield AuthCatalogPart(deleted=map(name_message, each))


def _chunks(items: Sequence[CatalogItem]) -> Iterator[Sequence[CatalogItem]]:
    return (items[start : start + PART_ENTRIES] for start in range(0, len(items), PART_ENTRIES))


@dataclass(slots=True)
class CatalogReceiver:
    """The catalog of one stream, from its parts."""

    catalog: Catalog | None = None  # None: not whole yet
    _items: dict[CatalogName, CatalogItem] = field(default_factory=dict)
    _is_whole: bool = False

    def on_part(self, part: AuthCatalogPart) -> bool:
        """Apply a part. Return whether the catalog is whole. Raises InvalidArgument."""
        if part.is_first:
            self._items, self._is_whole = {}, False
        for each in part.entries:
            item = entry_of(each)
            self._items[name_of(item)] = item
        for each in part.deleted:
            self._items.pop(entry_name(each), None)
        self._is_whole = self._is_whole or part.is_last
        if self._is_whole:
            self.catalog = _catalog_of_items(self._items.values())
        return self._is_whole


def _catalog_of_items(items: Iterable[CatalogItem]) -> Catalog:
    kinds: dict[type, list[CatalogItem]] = {Tenant: [], Key: [], Price: [], Route: []}
    for each in items:
        kinds[type(each)].append(each)
    return catalog_of(*kinds.values())  # type: ignore[arg-type]  # each list has items of its kind
