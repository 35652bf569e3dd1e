"""Settings of the endpoint picker."""

from dataclasses import dataclass
from pathlib import Path

from penstock.chassis.config import ServiceConfig, setting
from penstock.picker.endpoints.discovery import FILE_SCHEME, parse_endpoints
from penstock.picker.endpoints.endpoint import EndpointLimits
from penstock.picker.picking.picker import PickLimits
from penstock.picker.requests.caller import PRIORITIES, CallerHeaders
from penstock.queue.admission.admission import TtftTargets
from penstock.queue.policies.factory import PolicyConfig
from penstock.v1.inference_pb2 import Priority


@dataclass(frozen=True, kw_only=True, slots=True)
class PickerConfig(ServiceConfig):
    """Settings of `PENSTOCK_PICKER_*`."""

    listen: str = setting("127.0.0.1:9002", "Address of the external processor.", unit="host:port")
    unauthenticated_tls: bool = setting(
        False,
        "Serve TLS without a certificate of the caller. The connection is encrypted, and everyone who reaches the port"
        " is served. Not with `tls_certificate` or `insecure`.",
    )
    server_certificate: Path | None = setting(
        None,
        "Certificate for `unauthenticated_tls` with intermediate ones, in PEM, read again when it changes. Empty: one"
        " that is made and signed at each start, which callers cannot verify.",
        unit="path",
    )
    server_key: Path | None = setting(None, "Key of `server_certificate`, in PEM.", unit="path")
    endpoints: str = setting(
        "127.0.0.1:8000",
        "Servers, separated by commas: ip:port, or dns:///name:port for one per DNS record, or file:///PATH of such a"
        " list with one per line.",
    )
    slots: int = setting(64, "Requests that one endpoint may have. Further ones wait here.", unit="requests")
    max_waiting: int = setting(1_000, "Most requests that wait. A further one fails with QUEUE_FULL.", unit="requests")
    ttft_interactive: float = setting(
        10.0, "TTFT target of the class interactive. A request that is predicted to miss it is rejected.", unit="s"
    )
    ttft_standard: float = setting(60.0, "TTFT target of the class standard. 0: no target.", unit="s")
    ttft_batch: float = setting(0.0, "TTFT target of the class batch. 0: no target.", unit="s")
    max_wait: float = setting(
        60.0,
        "Time for the answer that a proxy is asked for if a request waits and the proxy limits the time, up to its"
        " `max_message_timeout`.",
        unit="s",
    )
    fallbacks: int = setting(1, "Endpoints after the chosen one, for retries of the proxy.", unit="endpoints")
    min_class_share: float = setting(0.05, "Share of the tokens that a lower class gets while it has waiting requests.")
    tenant_header: str = setting(
        "x-gateway-inference-fairness-id", "Request header with the tenant. The gateway must set or remove it."
    )
    tenant_weights: tuple[str, ...] = setting((), "Weights of tenants, as tenant=weight. Others have 1.")
    priority_header: str = setting(
        "x-penstock-priority", "Request header with the class: interactive, standard or batch. As `tenant_header`."
    )
    default_class: str = setting("standard", "Class of a request without that header.")
    time_limit_header: str = setting(
        "x-request-timeout-ms", "Request header with the time for the first token, in ms. Absent: the class's target."
    )
    max_body_bytes: int = setting(16 << 20, "Largest body of a request. A larger one fails with 413.", unit="bytes")
    max_held_bytes: int = setting(
        512 << 20, "Most bytes of the bodies of all requests that wait. Beyond it, requests fail.", unit="bytes"
    )
    scrape_path: str = setting("/metrics", "Path of the metrics of each endpoint.")
    scrape_interval: float = setting(0.5, "Time between two scrapes of an endpoint.", unit="s")
    scrape_timeout: float = setting(1.0, "Longest scrape.", unit="s")
    stale_after: float = setting(
        2.0, "Age at which a load is not known any more. The endpoint is then used for half of its slots.", unit="s"
    )
    down_after: float = setting(5.0, "Time without an answer after which an endpoint is not used.", unit="s")
    max_server_waiting: int = setting(
        4, "Requests in the queue of a server itself, beyond which it gets no further ones.", unit="requests"
    )
    max_kv_usage: float = setting(0.95, "Share of a server's KV blocks in use, likewise.")
    prefill_rate: float = setting(
        8_000.0,
        "Prompt tokens that an endpoint computes per second. It weighs cached prefixes against load.",
        unit="tokens/s",
    )

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if not self.endpoints.startswith(FILE_SCHEME) and not parse_endpoints(self.endpoints):
            raise ValueError("endpoints must name at least one as ip:port, dns:///name:port or file:///PATH")
        self._check_server_tls()
        for name in ("slots", "max_waiting", "max_body_bytes", "max_held_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("max_wait", "scrape_interval", "scrape_timeout", "stale_after", "down_after", "prefill_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("ttft_interactive", "ttft_standard", "ttft_batch", "fallbacks", "max_server_waiting"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if not 0 <= self.min_class_share < 1:
            raise ValueError("min_class_share must be at least 0 and below 1")
        if not 0 < self.max_kv_usage <= 1:
            raise ValueError("max_kv_usage must be above 0 and at most 1")
        if self.default_class not in PRIORITIES:
            raise ValueError(f"default_class must be one of {', '.join(PRIORITIES)}")
        _ = self.callers

    def _check_server_tls(self) -> None:
        if self.unauthenticated_tls and (self.tls_certificate or self.insecure):
            raise ValueError("unauthenticated_tls must be unset if tls_certificate or insecure is set")
        if (self.server_certificate is None) != (self.server_key is None):
            raise ValueError("server_certificate and server_key must be set together")
        if self.server_certificate and not self.unauthenticated_tls:
            raise ValueError("server_certificate needs unauthenticated_tls; with mutual TLS, set tls_certificate")

    @property
    def callers(self) -> CallerHeaders:
        return CallerHeaders(
            tenant=self.tenant_header.lower(),
            priority=self.priority_header.lower(),
            time_limit=self.time_limit_header.lower(),
            default_priority=PRIORITIES[self.default_class],
            weights=dict(map(_weight, self.tenant_weights)),
        )

    @property
    def endpoint_limits(self) -> EndpointLimits:
        return EndpointLimits(
            slots=self.slots,
            max_waiting=self.max_server_waiting,
            max_kv_usage=self.max_kv_usage,
            stale_after=self.stale_after,
            down_after=self.down_after,
            prefill_rate=self.prefill_rate,
        )

    @property
    def pick_limits(self) -> PickLimits:
        targets = {
            int(Priority.PRIORITY_INTERACTIVE): self.ttft_interactive,
            int(Priority.PRIORITY_STANDARD): self.ttft_standard,
            int(Priority.PRIORITY_BATCH): self.ttft_batch,
        }
        return PickLimits(
            max_waiting=self.max_waiting,
            fallbacks=self.fallbacks,
            targets=TtftTargets(targets),
            prefill_rate=self.prefill_rate,
        )

    @property
    def policy(self) -> PolicyConfig:
        return PolicyConfig(min_class_share=self.min_class_share)


def _weight(text: str) -> tuple[str, float]:
    tenant, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not tenant or not 0 < weight <= 1e6:
        raise ValueError(f"tenant_weights has {text[:40]!r}; an item is tenant=weight, with a weight above 0")
    return tenant, weight
