"""Commands for the administration of a mesh: keys, tenants, drains, figures."""

from asyncio import run as run_async
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.commands.models import models
from penstock.cli.commands.prices import prices
from penstock.cli.commands.regions import regions
from penstock.cli.limits.options import model_limit_option, policy_options, rate_options, region_option
from penstock.cli.options import TIERS, FiniteFloat, find_processes, find_tier, json_option, target_option

if TYPE_CHECKING:
    from penstock.cli.admin import AdminTarget

PRIORITIES = ("interactive", "standard", "batch")
DAY_S, CENTURY_S = 86_400, 3_155_760_000  # s


@click.group()
def keys() -> None:
    """API keys: create, list, limit, revoke."""


@keys.command("create")
@click.option("--tenant", default="default", show_default=True)
@click.option("--name", default="", help="display name")
@click.option("--ttl", type=FiniteFloat(1, CENTURY_S), metavar="SECONDS", help="lifetime; without it: unlimited")
@rate_options
@policy_options
@target_option
@json_option
def create_key(tenant: str, name: str, ttl: float | None, target: str, as_json: bool, **options: Any) -> None:
    """Create a key and show it once. Its limits apply in addition to those of its tenant."""
    from penstock.cli import admin
    from penstock.cli.limits import limits

    own = limits.key_limits_message(**options)
    run_async(admin.create_key(_admin_target("auth", target, as_json=as_json), tenant, name, ttl, own))


@keys.command("limit")
@click.argument("key_id")
@rate_options
@policy_options
@target_option
@json_option
def limit_key(key_id: str, target: str, as_json: bool, **options: Any) -> None:
    """Replace all limits of a key; those that are not given are removed."""
    from penstock.cli.limits import limits

    own = limits.key_limits_message(**options)
    run_async(limits.limit_key(_admin_target("auth", target, as_json=as_json), key_id, own))


@keys.command("list")
@click.option("--tenant", default="", help="only keys of this tenant")
@target_option
@json_option
def list_keys(tenant: str, target: str, as_json: bool) -> None:
    """List keys without their secrets."""
    from penstock.cli import admin

    run_async(admin.list_keys(_admin_target("auth", target, as_json=as_json), tenant))


@keys.command("revoke")
@click.argument("key_id")
@target_option
@json_option
def revoke_key(key_id: str, target: str, as_json: bool) -> None:
    """Revoke a key at once."""
    from penstock.cli import admin

    run_async(admin.revoke_key(_admin_target("auth", target, as_json=as_json), key_id))


@click.group()
def tenants() -> None:
    """Tenants and their limits: put, delete, list."""


@tenants.command("put")
@click.argument("tenant_id")
@click.option("--class", "priority", type=click.Choice(PRIORITIES), default="standard", show_default=True)
@click.option("--weight", type=FiniteFloat(0.01, 1000), default=1.0, show_default=True)
@rate_options
@model_limit_option
@policy_options
@region_option
@target_option
@json_option
def put_tenant(target: str, as_json: bool, priority: str, **options: Any) -> None:
    """Create a tenant or replace all of its limits; those that are not given are removed."""
    from penstock.cli import admin
    from penstock.cli.limits import limits
    from penstock.v1.inference_pb2 import Priority

    tenant = limits.tenant_message(priority=Priority.Value(f"PRIORITY_{priority.upper()}"), **options)
    run_async(admin.put_tenant(_admin_target("auth", target, as_json=as_json), tenant))


@tenants.command("delete")
@click.argument("tenant_id")
@target_option
@json_option
def delete_tenant(target: str, as_json: bool, tenant_id: str) -> None:
    """Delete a tenant without active requests, and its keys."""
    from penstock.cli import admin

    run_async(admin.delete_tenant(_admin_target("auth", target, as_json=as_json), tenant_id))


@tenants.command("list")
@target_option
@json_option
def list_tenants(target: str, as_json: bool) -> None:
    """List tenants with their limits and use."""
    from penstock.cli import admin

    run_async(admin.list_tenants(_admin_target("auth", target, as_json=as_json)))


@click.command()
@click.argument("process")
@click.option("--grace", type=FiniteFloat(0, DAY_S), metavar="SECONDS", help="maximum time for running requests")
@click.option("--target", default="", metavar="ADDRESS", help="its admin_listen, if it is not of the local mesh")
def drain(process: str, grace: float | None, target: str) -> None:
    """Drain PROCESS (worker-2, or a tier): it finishes its requests and exits."""
    from penstock.cli import admin

    run_async(admin.drain(_admin_target(process, target, as_json=False), grace))


@click.command()
@click.argument("process")
@click.option("--target", default="", metavar="ADDRESS", help="its admin_listen, if it is not of the local mesh")
@json_option
def snapshot(process: str, target: str, as_json: bool) -> None:
    """Show the current figures of PROCESS (worker-2, or a tier)."""
    from penstock.cli import admin

    run_async(admin.snapshot(_admin_target(process, target, as_json=as_json)))


processes_option = click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="ADDRESS",
    help="admin_listen of a process: unix:PATH, HOST:PORT or dns:///NAME:PORT; or a region of a mesh here; repeatable",
)


@click.command()
@processes_option
@click.option("--interval", type=FiniteFloat(0.1, 60), default=1.0, show_default=True, help="s between two polls")
@click.option("--once", is_flag=True, help="print one frame after one interval and exit")
@json_option
def top(targets: tuple[str, ...], interval: float, once: bool, as_json: bool) -> None:
    """Watch a mesh: queues, workers, rejections and the error of predictions."""
    from penstock.cli.top.command import top as watch

    names, addresses = find_processes(targets)
    run_async(watch(names, addresses, interval=interval, once=once, as_json=as_json))


@click.command()
@processes_option
@click.option(
    "--listen",
    default="127.0.0.1:7090",
    show_default=True,
    metavar="ADDRESS",
    help="a port of loopback (0: a free one), or unix:PATH for this user alone",
)
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="name of a forwarder with TLS on this host; repeatable"
)
@click.option("--interval", type=FiniteFloat(0.1, 60), default=1.0, show_default=True, help="s between two polls")
def dashboard(targets: tuple[str, ...], listen: str, hosts: tuple[str, ...], interval: float) -> None:
    """Serve a web page that draws a mesh: its flow, queues, workers and requests."""
    from penstock.cli.dashboard.command import dashboard as serve

    names, addresses = find_processes(targets)
    run_async(serve(names, addresses, listen=listen, hosts=hosts, interval=interval))


@click.command()
@click.argument("request_id", metavar="ID")
@processes_option
@json_option
def explain(request_id: str, targets: tuple[str, ...], as_json: bool) -> None:
    """Say why a recent request ended as it did, and where its time went.

    ID is a request, trace or ticket id, or the id of an answer or a response (chatcmpl-, resp_).
    """
    from penstock.cli.explain import explain as ask

    names, addresses = find_processes(targets)
    run_async(ask(names, addresses, request_id, as_json=as_json))


@click.command()
@click.argument("tier", type=click.Choice(TIERS))
@json_option
def config(tier: str, as_json: bool) -> None:
    """Show the configuration that TIER would start with here; unknown or invalid settings are errors."""
    from penstock.cli import admin

    admin.show_config(tier, as_json=as_json)


ADMIN_COMMANDS = (keys, tenants, prices, models, regions, drain, snapshot, top, dashboard, explain, config)


def _admin_target(process: str, target: str, *, as_json: bool) -> "AdminTarget":
    from penstock.cli.admin import AdminTarget

    return AdminTarget(target=find_tier(process, target), as_json=as_json)
