"""The control plane process: `python -m penstock.routing`."""

import os
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog

from penstock.chassis.config import ConfigError
from penstock.chassis.kubernetes import KubernetesApi
from penstock.chassis.lifecycle import background, main, stop_requested
from penstock.chassis.observability.sampling import HeadSampler
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.security.certificate_pair import CertificateInvalid
from penstock.chassis.security.process import is_loopback_address, open_security
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.routing_pb2_grpc import add_RoutingServiceServicer_to_server
from penstock.routing.config import RoutingConfig, config_map_name
from penstock.routing.door_certificate import DoorCertificate
from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import Address
from penstock.routing.reconciler import Reconciler
from penstock.routing.regions.admin import RoutingAdminService
from penstock.routing.regions.planner import RegionPlanner
from penstock.routing.regions.proxy_stats import read_proxies
from penstock.routing.regions.region_state import RegionStateInvalid
from penstock.routing.regions.state_config_map import StateConfigMap
from penstock.routing.regions.state_file import StateFile
from penstock.routing.regions.state_store import RegionStateStore, StatePlace
from penstock.routing.regions.watch import RegionWatchService
from penstock.routing.resources.build import ProxyConfig
from penstock.routing.resources.tracing import Collector
from penstock.routing.service import AggregatedDiscovery, add_discovery_to_server

log = structlog.get_logger()


async def run_routing(config: RoutingConfig) -> None:
    proxy = ProxyConfig(
        listen=Address.parse(config.envoy_listen),
        redirect_listen=Address.parse(config.redirect_listen) if config.redirect_listen else None,
        hsts_max_age_s=config.hsts_max_age,
        auths=config.auth_addresses,
        auth_check_timeout=timedelta(seconds=config.auth_check_timeout),
        max_streams_per_connection=config.max_streams_per_connection,
        access_log=config.access_log,
        keepalive_interval=config.keepalive,
        collector=collector_of(config),
        secrets=config.envoy_secrets,
        trust_domain=config.trust_domain,
        region=config.region,
        region_listen=Address.parse(config.region_listen) if config.region_listen else None,
        region_auths=config.region_auth_addresses,
        regions=config.other_regions,
    )
    planner = await planner_of(config)
    reconciler = await Reconciler.start(proxy, EdgeDiscovery(config.edges), await door_of(config), planner)
    watch = RegionWatchService(reconciler.plan, hello_of("routing", config.instance_id))
    reconciler.on_plan = watch.on_plan
    async with (
        background(reconciler.run(config.discovery_interval)),
        serving(
            config.listen,
            [
                (add_discovery_to_server, AggregatedDiscovery(reconciler.cache)),
                (add_RoutingServiceServicer_to_server, watch),
            ],
            admin=RoutingAdminService(
                config.instance_id,
                lambda: {**reconciler.figures(), **watch.figures},
                reconciler=reconciler,
                others=config.other_regions,
                read_proxies=partial(read_proxies, config.proxy_stats),
            ),
            observe=reconciler.observations,
            operators=OperatorListeners.of(config),
            drain_grace=config.drain_grace,
            advertise=config.advertise,
            security=open_security(config),
        ),
    ):
        await stop_requested()
        reconciler.cache.close()
        watch.close()


async def planner_of(config: RoutingConfig) -> RegionPlanner:
    """Return the planner of regions. Raises ConfigError if their state cannot be read."""
    place = state_place(config.regions_state)
    try:
        store = await RegionStateStore.load(place) if place else None
    except (RegionStateInvalid, OSError) as error:
        raise ConfigError(f"PENSTOCK_ROUTING_REGIONS_STATE cannot be used: {error}") from error
    return RegionPlanner(
        own=config.region,
        others=tuple(each.name for each in config.other_regions),
        store=store,
        return_step_s=config.region_return_step,
    )


def state_place(setting: str) -> StatePlace | None:
    """Return the place of the state of regions, None without one. Raises ConfigError for a ConfigMap outside a pod."""
    if name := config_map_name(setting):
        return StateConfigMap(KubernetesApi.of_pod("PENSTOCK_ROUTING_REGIONS_STATE", "regions"), name)
    return StateFile(Path(setting)) if setting else None


def collector_of(config: RoutingConfig) -> Collector | None:
    """Return the receiver of the proxies' spans: that of this process, with the sampling of this process."""
    if not config.otlp_endpoint:
        return None
    try:
        return Collector.parse(config.otlp_endpoint, HeadSampler.from_environment(os.environ).ratio)
    except ValueError as error:
        raise ConfigError(f"PENSTOCK_ROUTING_OTLP_ENDPOINT cannot be used by proxies: {error}") from error


async def door_of(config: RoutingConfig) -> DoorCertificate | None:
    """Return the certificate of the door, None for a plaintext door. Raises ConfigError if it cannot be used."""
    if not config.door_certificate:
        if not is_loopback_address(config.envoy_listen):
            log.warning("door_is_plaintext", address=config.envoy_listen)
        return None
    try:
        return await DoorCertificate.load(Path(config.door_certificate), Path(config.door_key))
    except (CertificateInvalid, OSError) as error:
        text = f"PENSTOCK_ROUTING_DOOR_CERTIFICATE and PENSTOCK_ROUTING_DOOR_KEY cannot be used: {error}"
        raise ConfigError(text) from error


if __name__ == "__main__":
    main(RoutingConfig, "routing", run_routing)
