"""Metrics that every process has: its calls, its streams and the end of its certificate."""

from collections.abc import Iterator

from penstock.chassis.lifecycle import current_stop
from penstock.chassis.observability.metrics import Observation
from penstock.chassis.observability.series import (
    CALLS_ACTIVE,
    CERTIFICATE_EXPIRY,
    DRAINING,
    FRAMES_REFUSED,
    STREAMS_OPEN,
)
from penstock.chassis.security.process import ProcessSecurity
from penstock.chassis.server.call_metrics import CallCounter
from penstock.chassis.streams.endpoint import counters


def process_observations(calls: CallCounter, security: ProcessSecurity) -> Iterator[Observation]:
    yield Observation(CALLS_ACTIVE, calls.in_flight)
    yield Observation(STREAMS_OPEN, counters.open)
    yield Observation(FRAMES_REFUSED, counters.unknown_frames, ("unknown",))
    yield Observation(FRAMES_REFUSED, counters.out_of_range_frames, ("out_of_range",))
    yield Observation(FRAMES_REFUSED, counters.malformed_messages, ("malformed",))
    yield Observation(DRAINING, current_stop().is_requested)
    if security.certificates:
        yield Observation(CERTIFICATE_EXPIRY, security.certificates.current().expires_at, ("mesh",))
    if security.server_certificate:
        yield Observation(CERTIFICATE_EXPIRY, security.server_certificate.expires_at, ("server",))
