"""Conversion of items of the catalog to messages, and validation of those that another region has sent."""

import re
from dataclasses import replace

from google.protobuf.timestamp_pb2 import Timestamp

from penstock.auth.admin import policies
from penstock.auth.admin.messages import check_display_name, key_message, tenant_message, tenant_of
from penstock.auth.identity.keys import Key
from penstock.auth.identity.policy import NO_POLICY
from penstock.auth.identity.tenant import TENANT_ID_FORMAT, Tenant
from penstock.auth.models.messages import definition_of, route_message
from penstock.auth.models.routes import Route
from penstock.auth.quota.prices import Price
from penstock.auth.store.routes import route_of, route_row
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.v1.region_quota_pb2 import AuthCatalogEntry, CatalogKey, CatalogRoute
from penstock.v1 import admin_pb2 as pb

CatalogItem = Tenant | Key | Price | Route
CatalogName = tuple[str, ...]  # kind, and what names the item among its kind

KEY_ID_FORMAT = re.compile(r"[a-z0-9]{1,32}")
DIGEST_BYTES = 32


def entry_message(item: CatalogItem) -> AuthCatalogEntry:
    match item:
        case Tenant():
            return AuthCatalogEntry(tenant=tenant_message(item))
        case Key():
            return AuthCatalogEntry(key=CatalogKey(key=key_message(item), digest=item.digest))
        case Price():
            return AuthCatalogEntry(price=policies.price_message(item))
        case Route():
            name, tenant_id, revision, definition, former = route_row(item)
            route = CatalogRoute(
                name=name, tenant_id=tenant_id, revision=revision, definition=definition, former=former
            )
            return AuthCatalogEntry(route=route)


def name_message(item: CatalogItem) -> AuthCatalogEntry:
    """Return the entry of a deleted item."""
    match item:
        case Tenant():
            return AuthCatalogEntry(tenant=pb.Tenant(tenant_id=item.tenant_id))
        case Key():
            return AuthCatalogEntry(key=CatalogKey(key=pb.Key(key_id=item.key_id)))
        case Price():
            return AuthCatalogEntry(price=pb.Price(model=item.model))
        case Route():
            return AuthCatalogEntry(route=CatalogRoute(name=item.name, tenant_id=item.tenant_id))


def entry_of(message: AuthCatalogEntry) -> CatalogItem:
    """Return the item of an entry. Raises InvalidArgument."""
    match message.WhichOneof("entry"):
        case "tenant":
            return tenant_of(message.tenant)
        case "key":
            return _key_of(message.key)
        case "price":
            return policies.price_of(message.price)
        case "route":
            return _route_of(message.route)
        case _:
            raise _invalid("entry", "an entry of the catalog has none of the kinds of this release")


def name_of(item: CatalogItem) -> CatalogName:
    match item:
        case Tenant():
            return ("tenants", item.tenant_id)
        case Key():
            return ("keys", item.key_id)
        case Price():
            return ("prices", item.model)
        case Route():
            return ("routes", *item.key)


def entry_name(message: AuthCatalogEntry) -> CatalogName:
    """Return the name of a deleted item; empty if its kind is unknown."""
    match message.WhichOneof("entry"):
        case "tenant":
            return ("tenants", message.tenant.tenant_id)
        case "key":
            return ("keys", message.key.key.key_id)
        case "price":
            return ("prices", message.price.model)
        case "route":
            return ("routes", message.route.name, message.route.tenant_id)
        case _:
            return ()


def _key_of(message: CatalogKey) -> Key:
    key = message.key
    if not KEY_ID_FORMAT.fullmatch(key.key_id):
        raise _invalid("key.key_id", f"{key.key_id[:64]!r} is not the id of a key")
    if not TENANT_ID_FORMAT.fullmatch(key.tenant_id):
        raise _invalid("key.tenant_id", f"{key.tenant_id[:64]!r} is not the id of a tenant")
    if len(message.digest) != DIGEST_BYTES:
        raise _invalid("digest", f"the digest of key {key.key_id} has {len(message.digest)} bytes, not {DIGEST_BYTES}")
    if key.loopback_only:
        raise _invalid("key.loopback_only", f"key {key.key_id} works on loopback only and must stay in its region")
    check_display_name(key.display_name)
    return Key(
        key_id=key.key_id,
        tenant_id=key.tenant_id,
        digest=message.digest,
        created_at=_seconds(key.create_time),
        display_name=key.display_name,
        expires_at=_seconds(key.expire_time) if key.HasField("expire_time") else None,
        revoked_at=_seconds(key.revoke_time) if key.HasField("revoke_time") else None,
        policy=policies.key_policy_of(key.limits) if key.HasField("limits") else NO_POLICY,
    )


def _route_of(message: CatalogRoute) -> Route:
    if message.revision < 1:
        raise _invalid("route.revision", "revisions are counted from 1")
    row = (message.name, message.tenant_id, message.revision, message.definition, message.former)
    try:
        route = route_of(row)
        definitions = [route, replace(route, definition=route.former)] if route.former else [route]
        messages = [route_message(each) for each in definitions]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"the definition of route {message.name[:64]!r} is invalid: {error}"
        raise _invalid("route.definition", text) from None
    for each in messages:
        definition_of(each)
    return route


def _seconds(at: Timestamp) -> float:
    return at.ToMicroseconds() / 1e6


def _invalid(field: str, text: str) -> InvalidArgument:
    return InvalidArgument(text, field=field)
