"""Connections over HTTP with mutual TLS that proxies alone may open."""

import asyncio

from penstock.chassis.errors import PermissionDenied
from penstock.chassis.security.identity import identity_of_names
from penstock.chassis.security.interceptor import check_trust_domain
from penstock.chassis.security.permissions import DOOR_TIERS


def check_proxy(transport: asyncio.Transport, trust_domain: str) -> None:
    """Raise IdentityInvalid or PermissionDenied unless the certificate of the peer is of a proxy of `trust_domain`."""
    peer = identity_of_names(transport.get_extra_info("ssl_object").getpeercert() or {})
    check_trust_domain(peer, trust_domain)
    if peer.tier not in DOOR_TIERS:
        text = f"a process of tier {peer.tier} ({peer.instance_id}) may not use a port of proxies"
        raise PermissionDenied(text, reason="PEER_NOT_ALLOWED")
