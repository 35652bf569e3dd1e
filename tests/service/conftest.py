"""One receiver of telemetry for all service tests: OpenTelemetry's providers are set once in a process."""

import pytest

from otlp_receiver import otlp_receiver
from penstock.chassis.observability.telemetry import open_telemetry


@pytest.fixture(scope="session")
def receiver():
    """A receiver of this process's spans and metrics; select by the trace ID of the test."""
    with pytest.MonkeyPatch.context() as patch, otlp_receiver() as found:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # ms
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")  # ms
        telemetry = open_telemetry("test", "test-1", otlp_endpoint=found.endpoint)
        yield found
        telemetry.shutdown()
