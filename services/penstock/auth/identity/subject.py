"""Key ids of tokens: oidc/TENANT/SUBJECT, for logs, the ledger and fallback grants."""

import hashlib
import re

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import TENANT_ID_FORMAT

PREFIX = "oidc/"
_SUBJECT = re.compile(r"[!-~]{1,160}")


def key_id_of_subject(tenant_id: str, subject: str) -> str:
    """Return the key id of a token's subject; with a digest of a subject that is long or has other characters."""
    is_plain = _SUBJECT.fullmatch(subject)
    return f"{PREFIX}{tenant_id}/{subject if is_plain else _digest(subject)}"


def key_of_subject(key_id: str) -> Key | None:
    """Return the caller that a key id of a token names; None for the id of an API key."""
    if not key_id.startswith(PREFIX):
        return None
    tenant, slash, subject = key_id.removeprefix(PREFIX).partition("/")
    if not (slash and subject and TENANT_ID_FORMAT.fullmatch(tenant)):
        return None
    return Key(key_id=key_id, tenant_id=tenant, digest=b"", created_at=0.0)


def _digest(subject: str) -> str:
    return f"sha256:{hashlib.sha256(subject.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
