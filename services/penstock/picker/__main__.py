"""One endpoint picker: `python -m penstock.picker`."""

import time

from penstock.chassis import lifecycle
from penstock.chassis.config import ConfigError
from penstock.chassis.http2.limits import Http2Limits
from penstock.chassis.lifecycle import background, stop_requested
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.ext_proc.external_processor_pb2_grpc import add_ExternalProcessorServicer_to_server
from penstock.picker import metrics
from penstock.picker.config import PickerConfig
from penstock.picker.endpoints.discovery import EndpointDiscovery
from penstock.picker.endpoints.fleet import EndpointFleet
from penstock.picker.endpoints.scraper import EndpointScraper
from penstock.picker.picking.picker import EndpointPicker
from penstock.picker.server_tls import picker_security
from penstock.picker.service import ExternalProcessor, ProcessorLimits
from penstock.picker.snapshot import figures, tables

TICK_INTERVAL_S = 0.05
MAX_STREAMS = 100_000  # of a proxy, which has one connection with a stream for each of its requests
FRAME_BYTES = 1 << 20  # of a message around a body: headers, metadata


async def run_picker(config: PickerConfig) -> None:
    fleet = EndpointFleet(config.endpoint_limits)
    picker = EndpointPicker(fleet, config.pick_limits, config.policy)
    limits = ProcessorLimits(
        max_body_bytes=config.max_body_bytes, max_held_bytes=config.max_held_bytes, max_wait=config.max_wait
    )
    processor = ExternalProcessor(picker, config.callers, limits, time.monotonic)
    scraper = EndpointScraper(
        fleet,
        EndpointDiscovery(config.endpoints),
        time.monotonic,
        processor.on_fleet_changed,
        path=config.scrape_path,
        interval_s=config.scrape_interval,
        timeout_s=config.scrape_timeout,
    )
    try:
        await scraper.discover()
    except (OSError, ValueError) as error:
        raise ConfigError(f"PENSTOCK_PICKER_ENDPOINTS cannot be read: {error}") from error
    await scraper.scrape_all()
    async with (
        background(scraper.run(), scraper.run_discovery(), processor.tick(TICK_INTERVAL_S)),
        serving(
            config.listen,
            [(add_ExternalProcessorServicer_to_server, processor)],
            admin=AdminService("picker", config.instance_id, lambda: figures(picker), lambda: tables(fleet)),
            observe=lambda: metrics.observations(picker, scraper),
            operators=OperatorListeners.of(config),
            drain_grace=config.drain_grace,
            advertise=config.advertise,
            limits=Http2Limits(message_bytes=config.max_body_bytes + FRAME_BYTES, max_streams=MAX_STREAMS),
            security=picker_security(config),
        ),
    ):
        await stop_requested()


if __name__ == "__main__":
    lifecycle.main(PickerConfig, "picker", run_picker)
