"""Credential headers: where the headers of a call have its key or token.

A proxy's auth and an edge read them by the same rule, because the identity that auth signs is bound to the credential.
"""

from collections.abc import Mapping

from penstock.mesh.limits.bounds import BEARER_CHARS

AUTHORIZATION = "authorization"
API_KEY = "x-api-key"


def bearer_of(headers: Mapping[str, str]) -> str:
    """Return the bearer credential of `authorization`; without one, that of `x-api-key`. Empty if there is none.

    Names of headers are in lower case. A credential that is too long is cut, so that it is not accepted.
    """
    scheme, _, bearer = headers.get(AUTHORIZATION, "").partition(" ")
    given = bearer.strip() if scheme.lower() == "bearer" else ""
    return (given or headers.get(API_KEY, "").strip())[:BEARER_CHARS]
