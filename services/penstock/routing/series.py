"""Series of routing, which owns the list of edges and the configuration of the proxies."""

from penstock.chassis.observability.series import counter, gauge

XDS_REQUESTS = counter("penstock.xds.requests", "{frame}", "Frames from proxies; kind is ACK or NACK.", "type", "kind")
XDS_RESPONSES = counter("penstock.xds.responses", "{frame}", "Frames to proxies.", "type")
PROXIES = gauge("penstock.routing.proxies", "{stream}", "Connected xDS streams of proxies.")
EDGES = gauge(
    "penstock.routing.edges",
    "{edge}",
    "Edges that proxies send calls to; state is serving or draining.",
    "region",
    "zone",
    "state",
)
SNAPSHOTS = counter("penstock.routing.snapshots", "{snapshot}", "Configurations that were published.")
DISCOVERY_FAILURES = counter(
    "penstock.routing.discovery_failures", "{poll}", "Polls of the list of edges that failed; the former list is used."
)

REGION_SHARE = gauge(
    "penstock.routing.region_share",
    "1",
    "Share of new calls that go to this region first, among calls whose tenant allows every region.",
    "region",
)
REGION_DRAINED = gauge("penstock.routing.region_drained", "1", "1 if an operator has drained the region.", "region")

SERIES = (
    *(XDS_REQUESTS, XDS_RESPONSES, PROXIES, EDGES, SNAPSHOTS, DISCOVERY_FAILURES),
    *(REGION_SHARE, REGION_DRAINED),
)
