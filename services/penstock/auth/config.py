"""Settings of auth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.auth.identity.keys import key_id_of
from penstock.auth.quota.prices import FULL_PERCENT
from penstock.auth.regions.share import MAX_SPENDING_REGIONS
from penstock.auth.store.roll_up import MIN_LEDGER_ROWS
from penstock.chassis.config import ServiceConfig, check_address, check_region, setting
from penstock.chassis.database.location import StoreLocation, parse_location, without_password


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthConfig(ServiceConfig):
    """Settings of `PENSTOCK_AUTH_*`."""

    former_names: ClassVar[Mapping[str, str]] = {
        "grace_share": "fallback_share",
        "grace_tokens": "fallback_tokens",
    }

    listen: str = setting("127.0.0.1:7002", "Address of the gRPC server.", unit="host:port")
    check_listen: str = setting(
        "", "Address on which proxies ask about their callers over HTTP. Empty: none.", unit="host:port"
    )
    drain_grace: float = setting(
        5.0, "Longest drain after SIGTERM. Edges leave at once and settle with the next process.", unit="s"
    )
    store: str = setting(
        ":memory:",
        "SQLite file, as a path or `sqlite:///absolute/path`, or PostgreSQL database, as `postgresql://user@host/database`"
        " (any URL of libpq; the password may also be in PGPASSWORD or a password file). `:memory:`: keys and the usage"
        " ledger are lost when the process ends.",
        unit="path or URL",
        show=without_password,
    )
    fsync: bool = setting(
        False,
        "Whether each commit to SQLite is flushed to disk, so that it survives a power loss. Costs a flush per commit."
        " PostgreSQL decides with its own `synchronous_commit`.",
    )
    ledger_retention: float = setting(
        2_592_000.0,
        "Time for which the ledger has a row per request, and for which revoked and expired keys are listed. PostgreSQL"
        " drops the rows of a whole day, a day later. Totals keep what the rows have charged.",
        unit="s",
    )
    ledger_max_rows: int = setting(
        2_000_000,
        "Most rows of the ledger in SQLite, about 300 bytes each. The oldest are deleted before their retention ends.",
        unit="rows",
    )
    hourly_retention: float = setting(
        7_776_000.0,
        "Time for which usage is kept by hour, tenant, key, model and region. Older totals become totals of their day.",
        unit="s",
    )
    response_ttl: float = setting(
        2_592_000.0,
        "Time for which a stored response is kept after its creation, and after its latest use in a conversation.",
        unit="s",
    )
    response_bytes_per_tenant: int = setting(
        1 << 30,
        "Most bytes of one tenant's stored responses, each with 512 bytes beside its sealed parts. A response that is"
        " stored is completed beyond it. 0: no tenant stores any.",
        unit="bytes",
    )
    batch_price_percent: int = setting(
        50,
        "Share of the price of a model that requests of class batch pay, 0 to 100. 100: they pay as all others.",
        unit="percent",
    )
    disk_watermark: float = setting(
        0.9, "Used share of the store's volume from which auth warns: log line, metric and snapshot."
    )
    pepper: str = setting(
        "",
        "Secret of the key hashes. Empty: generated once and kept in `<store>.pepper`, or in a table of PostgreSQL.",
        secret=True,
    )
    mesh_secret: str = setting(
        "",
        "Secret from which the prefix cache salts of tenants derive. Empty: generated once and kept in"
        " `<store>.mesh-secret`, or in a table of PostgreSQL.",
        fleet="PENSTOCK_MESH_SECRET",
        secret=True,
    )
    dev_key: str = setting(
        "", "API key of the tenant `default` that is accepted from loopback only and never stored.", secret=True
    )
    reservation_ttl: float = setting(
        90_000.0, "Time after which an unsettled reservation expires. Longer than the longest request.", unit="s"
    )
    edge_grace: float = setting(
        30.0, "Time for which an edge may be disconnected before its reservations are settled as lost.", unit="s"
    )
    fallback_share: float = setting(
        0.25,
        "Share of the tokens that a tenant's limits leave which all edges together may admit while auth is"
        " unreachable. 0: none.",
    )
    fallback_tokens: int = setting(
        1_000_000,
        "The same for a tenant without a limit on tokens, at each edge.",
        unit="tokens",
    )
    fallback_grant_ttl: float = setting(
        1_800.0,
        "Time after an admission for which its edge may admit requests of the same key while auth is unreachable.",
        unit="s",
    )
    accept_ungranted_fallback: bool = setting(
        False,
        "Whether auth records requests that edges admitted without a grant. Set it only while edges of a release"
        " without grants run: any peer that can connect as an edge may then spend the tokens of any key.",
    )
    failures_per_source: int = setting(
        60,
        "Failing credentials that one source may present at once and per minute; then it receives TOO_MANY_FAILURES. A"
        " source is an IPv4 address or 64 bits of an IPv6 address.",
    )
    failures_per_edge: int = setting(
        600, "The same for all callers of one edge together; failures of a source over its own limit do not count."
    )
    trusted_hops: int = setting(
        0, "Proxies in front of Envoy that append their client to x-forwarded-for, such as a load balancer."
    )
    issuers: str = setting(
        "",
        "JSON file with the issuers whose JWTs are accepted beside keys; see docs/operations/access.md. Empty: none.",
        unit="path",
    )
    token_leeway: float = setting(30.0, "Time by which the clocks of issuers may differ from that of auth.", unit="s")
    jwks_refresh_interval: float = setting(300.0, "Time between two loads of an issuer's keys.", unit="s")
    jwks_request_interval: float = setting(
        10.0, "Shortest time between two loads of an issuer's keys because a token names an unknown one.", unit="s"
    )
    jwks_max_age: float = setting(
        3_600.0,
        "Time after the latest successful load of an issuer's keys from which its tokens are refused. A key that the"
        " issuer withdraws is refused after JWKS_REFRESH_INTERVAL, and after this time if its keys cannot be loaded.",
        unit="s",
    )

    home: str = setting(
        "",
        "Region that keeps tenants, keys, prices and routes for this region. Empty, or the own region: this region"
        " keeps them.",
    )
    home_door: str = setting(
        "", "Region door of `home`. Required if that is another region; empty otherwise.", unit="host:port"
    )
    spending_regions: tuple[str, ...] = setting(
        (),
        "Other regions that follow this one and spend from the limits of its tenants, at most 3. Empty: limits are"
        " whole here.",
    )
    replace_catalog: bool = setting(
        False,
        "Whether the first catalog of `home` deletes tenants and keys that this region has and `home` lacks. If not, it"
        " does not follow `home` while there are any.",
    )

    @property
    def store_location(self) -> StoreLocation:
        return parse_location(self.store)

    @property
    def audit_log_path(self) -> str:
        location = self.store_location
        beside_store = f"{location.path}.audit.jsonl" if location.is_file else ""
        return self.audit_log or beside_store

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        self._check_store()
        if self.dev_key and not key_id_of(self.dev_key):
            raise ValueError("dev_key must look like pk_ID_SECRET with a secret of 22 letters and digits or more")
        if not 0 <= self.fallback_share <= 1:
            raise ValueError("fallback_share must be a share, 0 to 1")
        if not 0 <= self.fallback_tokens < 2**32:
            raise ValueError("fallback_tokens must be 0 to 2**32 - 1")
        if not 0 < self.disk_watermark <= 1:
            raise ValueError("disk_watermark must be a share, above 0 and at most 1")
        if not 0 <= self.batch_price_percent <= FULL_PERCENT:
            raise ValueError(f"batch_price_percent must be 0 to {FULL_PERCENT}")
        if not 0 <= self.response_bytes_per_tenant < 2**62:
            raise ValueError("response_bytes_per_tenant must be 0 to 2**62 - 1")
        if self.ledger_max_rows < MIN_LEDGER_ROWS:
            raise ValueError(f"ledger_max_rows must be at least {MIN_LEDGER_ROWS}, which a restart reads")
        if not 0 <= self.token_leeway <= 300:
            raise ValueError("token_leeway must be 0 to 300 s")
        if not 0 < self.jwks_refresh_interval <= self.jwks_max_age:
            raise ValueError("jwks_refresh_interval must be above 0 s and at most jwks_max_age")
        if self.jwks_request_interval <= 0:
            raise ValueError("jwks_request_interval must be more than 0 s")
        for name in ("failures_per_source", "failures_per_edge"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 <= self.trusted_hops <= 16:
            raise ValueError("trusted_hops must be 0 to 16")
        retentions = ("ledger_retention", "hourly_retention", "response_ttl")
        for name in ("reservation_ttl", "edge_grace", "fallback_grant_ttl", *retentions):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0 s")
        if self.fallback_grant_ttl > 86_400:
            raise ValueError("fallback_grant_ttl must be at most 86400 s, a day")

        self._check_home()

    @property
    def is_home(self) -> bool:
        """Whether this region keeps its tenants itself."""
        return self.home in ("", self.region)

    def _check_home(self) -> None:
        if self.home:
            check_region("home", self.home)
        for each in self.spending_regions:
            check_region("spending_regions", each)
        if (self.home or self.spending_regions) and not self.region:
            raise ValueError("region must be set with home and spending_regions; set PENSTOCK_REGION")
        if bool(self.home_door) == self.is_home:
            raise ValueError("home_door must be set if home is another region, and only then")
        if self.home_door:
            check_address("home_door", self.home_door)
        if self.spending_regions and not self.is_home:
            raise ValueError("spending_regions must be set in the home region alone")
        names = {self.region, *self.spending_regions}
        if len(names) <= len(self.spending_regions) or len(self.spending_regions) > MAX_SPENDING_REGIONS:
            raise ValueError(f"spending_regions must name at most {MAX_SPENDING_REGIONS} other regions, each once")

    def _check_store(self) -> None:
        try:
            parse_location(self.store)
        except ValueError as error:
            raise ValueError(f"store {error}") from None
