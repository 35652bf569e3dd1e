"""Which HTTP requests the page's server answers. Pure: `now` is passed in."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.chassis.errors import PermissionDenied
from penstock.chassis.operators.access import OperatorAccess

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case


@dataclass(frozen=True, slots=True)
class PageAccess:
    """Admits requests of the page itself by operators.

    A browser sends requests also for pages of others. Their names of this server are not loopback (DNS rebinding), or
    their origin is another (cross-site). The credential is a header that a browser never adds by itself; there are no
    cookies.
    """

    operators: OperatorAccess

    def check_host(self, headers: Headers) -> None:
        """Raise PermissionDenied / HOST_DENIED unless the request names this server by a loopback name.

        Its port may be another, because of forwarders.
        """
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or _name_of(hosts[0]) not in LOOPBACK_NAMES:
            text = f"this page is served as {' or '.join(LOOPBACK_NAMES)} alone; forward a local port to it"
            raise PermissionDenied(text, reason="HOST_DENIED")

    def check_data(self, headers: Headers, peer: str, now: float) -> None:
        """Raise PermissionDenied unless the page of this server asks for an operator.

        Reasons: ORIGIN_DENIED for the page of another server, ADMIN_ONLY without the token. Raises Overloaded /
        ADMIN_THROTTLED after several attempts without the token.
        """
        origin = f"http://{_values(headers, b'host')[0]}"
        sites, origins = _values(headers, b"sec-fetch-site"), _values(headers, b"origin")
        if any(site not in {"same-origin", "none"} for site in sites) or any(each != origin for each in origins):
            raise PermissionDenied("pages of other servers are not answered", reason="ORIGIN_DENIED")
        authorization = "".join(_values(headers, b"authorization"))
        self.operators.authorize(peer, authorization, None, now)


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for given, value in headers if given == name]


def _name_of(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
