"""What keeps one tenant's cached prefixes from being found by another's prompts."""

import hmac

SALT_BYTES = 16


def cache_salt(mesh_secret: bytes, tenant_id: str) -> bytes:
    """Secret of a tenant, the same on every auth process that has the same mesh secret."""
    return hmac.digest(mesh_secret, tenant_id.encode(), "sha256")[:SALT_BYTES]
