"""Access to the page's server: the HTTP requests that it answers. Pure: `now` is passed in."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.chassis.errors import PermissionDenied
from penstock.chassis.operators.access import OperatorAccess

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case


@dataclass(frozen=True, slots=True)
class PageAccess:
    """Admits requests of the page itself by operators.

    A browser sends requests also for pages of others. Their name of this server is another (DNS rebinding), or their
    origin is another (cross-site). The credential is a header that a browser never adds by itself; there are no
    cookies.
    """

    operators: OperatorAccess
    names: tuple[str, ...] = ()  # of this server at forwarders, in addition to the loopback names; in lower case

    def check_host(self, headers: Headers) -> None:
        """Raise PermissionDenied / HOST_DENIED unless the request has one of the names of this server.

        The port may be another, because of forwarders.
        """
        hosts, names = _values(headers, b"host"), (*LOOPBACK_NAMES, *self.names)
        if len(hosts) != 1 or _name_of(hosts[0]) not in names:
            text = f"this page is served as {' or '.join(names)} alone; use one of these, or add yours with --host"
            raise PermissionDenied(text, reason="HOST_DENIED")

    def check_data(self, headers: Headers, peer: str, now: float) -> None:
        """Raise PermissionDenied unless the page of this server asks for an operator.

        Reasons: ORIGIN_DENIED for the page of another server, ADMIN_ONLY without the token. Raises Overloaded /
        ADMIN_THROTTLED after several attempts without the token.
        """
        host = _values(headers, b"host")[0]
        own = f"http://{host}", f"https://{host}"  # a forwarder may add TLS
        sites, origins = _values(headers, b"sec-fetch-site"), _values(headers, b"origin")
        if not ({"same-origin", "none"}.issuperset(sites) and set(own).issuperset(origins)):
            raise PermissionDenied("pages of other servers are not answered", reason="ORIGIN_DENIED")
        authorization = "".join(_values(headers, b"authorization"))
        self.operators.authorize(peer, authorization, None, now)


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for given, value in headers if given == name]


def _name_of(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
