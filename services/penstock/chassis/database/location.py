"""The location of the store, as the setting names it: memory, a SQLite file, or a PostgreSQL database."""

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

MEMORY = ":memory:"
POSTGRES_SCHEMES = ("postgresql", "postgres")
_SHOWN_PARAMETERS = ("host", "port", "user", "dbname", "options", "sslmode")  # of the query; no secret is among them


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Either a path of a SQLite file (or `:memory:`), or the URL of a PostgreSQL database."""

    path: str = ""
    url: str = ""  # empty: SQLite

    @property
    def is_postgres(self) -> bool:
        return bool(self.url)

    @property
    def is_file(self) -> bool:
        return not self.url and self.path != MEMORY

    def __str__(self) -> str:
        """The location for messages, without a password."""
        return _without_password(self.url) if self.url else self.path

    def __repr__(self) -> str:
        return f"<StoreLocation {self}>"


def parse_location(text: str) -> StoreLocation:
    """Return the location of a path or URL. Raises ValueError, whose message has no part of a PostgreSQL URL."""
    scheme, separator, rest = text.partition("://")
    if not text:
        raise ValueError("must not be empty; `:memory:` keeps the state in memory")
    if not separator:
        return StoreLocation(path=text)
    if scheme in POSTGRES_SCHEMES:
        _check_url(text)
        return StoreLocation(url=text)
    if scheme != "sqlite":
        raise ValueError("must be a path, `:memory:`, sqlite:///absolute/path or postgresql://user@host/database")
    if not rest.startswith("/") or rest == "/":
        raise ValueError("must name an absolute path: sqlite:///absolute/path")
    return StoreLocation(path=unquote(rest))


def without_password(text: str) -> str:
    """Return the setting as it may be shown."""
    return _without_password(text) if text.partition("://")[0] in POSTGRES_SCHEMES else text


def _check_url(url: str) -> None:
    from psycopg import ProgrammingError  # noqa: PLC0415  # an extra of auth; the CLI reads its settings without it
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        conninfo_to_dict(url)
    except ProgrammingError:  # its message may have a part of the password
        text = "is no valid URL of PostgreSQL; encode special characters of user and password, such as %40 for @"
        raise ValueError(text) from None


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql://***"
    userinfo, at, hosts = parts.netloc.rpartition("@")
    shown = [(name, value) for name, value in parse_qsl(parts.query) if name in _SHOWN_PARAMETERS]
    query = f"?{urlencode(shown, safe='/:,')}" if shown else ""
    return f"{parts.scheme}://{userinfo.partition(':')[0]}{at}{hosts}{parts.path}{query}"
