"""The control plane process: `python -m penstock.routing`."""

from penstock.chassis.lifecycle import background, main, stop_requested
from penstock.chassis.operators.listeners import OperatorListeners
from penstock.chassis.security.process import open_security
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.server import serving
from penstock.routing.config import RoutingConfig
from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import Address
from penstock.routing.reconciler import Reconciler
from penstock.routing.resources.build import ProxyConfig
from penstock.routing.service import AggregatedDiscovery, add_discovery_to_server


async def run_routing(config: RoutingConfig) -> None:
    proxy = ProxyConfig(
        listen=Address.parse(config.envoy_listen),
        access_log=config.access_log,
        keepalive_interval=config.keepalive,
        secrets=config.envoy_secrets,
    )
    reconciler = await Reconciler.start(proxy, EdgeDiscovery(config.edges))
    async with (
        background(reconciler.run(config.discovery_interval)),
        serving(
            config.listen,
            [(add_discovery_to_server, AggregatedDiscovery(reconciler.cache))],
            admin=AdminService("routing", config.instance_id, reconciler.figures),
            operators=OperatorListeners.of(config),
            drain_grace=config.drain_grace,
            advertise=config.advertise,
            security=open_security(config),
        ),
    ):
        await stop_requested()
        reconciler.cache.close()


if __name__ == "__main__":
    main(RoutingConfig, "routing", run_routing)
