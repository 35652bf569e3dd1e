"""The plan of the processes that `penstock up` starts."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.chassis.operators.unix_socket import is_path_short
from penstock.local_mesh.launch import socket_folder
from penstock.local_mesh.paths import admin_socket
from penstock.local_mesh.plan import MeshOptions, plan_mesh
from penstock.local_mesh.regions import check_names


def plan_of(**options):
    return plan_mesh(MeshOptions(**options), Path("/state"), "the-key", envoy="/bin/envoy", cores=4)


def test_every_process_has_its_own_name_and_ports():
    plan = plan_of(edges=3, queues=2, schedulers=2, workers=4)
    names = [each.name for each in plan.processes]
    addresses = [at for each in plan.processes for at in (each.address, each.http, each.admin) if at]
    assert len(set(names)) == len(names) == 3 + 2 + 2 + 4 + 3
    assert len(set(addresses)) == len(addresses)


def test_default_ports_are_the_published_ones():
    plan = plan_of()
    assert (plan.grpc, plan.http, plan.proxy) == ("127.0.0.1:7001", "127.0.0.1:7080", "127.0.0.1:8080")
    assert [each.address.rpartition(":")[2] for each in plan.processes] == [
        "7002", "7003", "7004", "7005", "7001", "7006", "8080",
    ]  # fmt: skip


def test_the_base_port_shifts_every_port_alike():
    plain, shifted = plan_of(), plan_of(base_port=9000)
    for before, after in zip(plain.processes, shifted.processes, strict=True):
        assert int(after.address.rpartition(":")[2]) - int(before.address.rpartition(":")[2]) == 2000


def test_auth_uses_a_file_of_the_mesh_or_the_given_store_and_then_names_its_audit_log():
    [in_file] = plan_of().processes_of("auth")
    assert in_file.environment["PENSTOCK_AUTH_STORE"] == "/state/auth.sqlite"
    assert "PENSTOCK_AUTH_AUDIT_LOG" not in in_file.environment
    url = "postgresql://postgres@/postgres?host=/state"
    plan = plan_mesh(MeshOptions(store="postgres"), Path("/state"), "the-key", store=url)
    [in_postgres] = plan.processes_of("auth")
    assert in_postgres.environment["PENSTOCK_AUTH_STORE"] == url
    assert in_postgres.environment["PENSTOCK_AUTH_AUDIT_LOG"] == "/state/auth.audit.jsonl"


def test_edges_and_proxies_know_every_replica_of_auth():
    plan = plan_of(auths=3, store="postgres")
    assert [each.name for each in plan.processes_of("auth")] == ["auth-1", "auth-2", "auth-3"]
    (edge,), (routing,) = plan.processes_of("edge"), plan.processes_of("routing")
    assert edge.environment["PENSTOCK_EDGE_AUTHS"].split(",") == [each.address for each in plan.processes_of("auth")]
    checks = [each.environment["PENSTOCK_AUTH_CHECK_LISTEN"] for each in plan.processes_of("auth")]
    assert routing.environment["PENSTOCK_ROUTING_AUTHS"].split(",") == checks
    assert len(set(checks)) == 3


def test_every_process_of_a_tier_has_an_admin_socket_of_its_own():
    plan = plan_of(edges=2, workers=2)
    sockets = {each.name: each.admin_target for each in plan.processes if each.tier != "envoy"}
    assert sockets["worker-2"] == "unix:/state/worker-2.admin"
    assert len(set(sockets.values())) == len(sockets)
    for each in plan.processes:
        if each.tier != "envoy":
            assert each.environment[f"PENSTOCK_{each.tier.upper()}_ADMIN_LISTEN"] == each.admin_address


def test_a_setting_may_name_another_admin_address():
    [queue] = plan_of(settings=("PENSTOCK_QUEUE_ADMIN_LISTEN=127.0.0.1:7009",)).processes_of("queue")
    assert queue.admin_address == "127.0.0.1:7009"


def test_a_process_without_an_admin_listener_is_asked_on_its_main_port():
    [queue] = plan_of().processes_of("queue")
    assert replace(queue, admin_target="").admin_address == queue.address


@pytest.mark.parametrize(("length", "is_own"), [(20, True), (90, False), (300, False)])
def test_admin_sockets_are_in_the_folder_of_the_mesh_or_in_a_private_one_if_its_path_is_too_long(length, is_own):
    folder = Path("/" + "m" * length)
    with socket_folder(folder) as sockets:
        assert (sockets == folder) is is_own
        assert is_path_short(admin_socket(sockets, "scheduler-4"))
        if not is_own:
            assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert is_own or not sockets.exists()


def test_without_envoy_there_is_no_routing():
    tiers = {each.tier for each in plan_of(envoy=False).processes}
    assert tiers == {"auth", "queue", "scheduler", "worker", "edge"}


def test_edges_and_schedulers_have_the_addresses_of_every_queue():
    plan = plan_of(edges=2, queues=3, schedulers=2)
    queues = ",".join(each.address for each in plan.processes_of("queue"))
    assert {each.environment["PENSTOCK_EDGE_QUEUES"] for each in plan.processes_of("edge")} == {queues}
    assert {each.environment["PENSTOCK_SCHEDULER_QUEUES"] for each in plan.processes_of("scheduler")} == {queues}


def test_workers_are_spread_over_the_schedulers_and_have_the_addresses_of_all():
    plan = plan_of(schedulers=2, workers=4)
    first = [each.environment["PENSTOCK_WORKER_SCHEDULERS"].split(",")[0] for each in plan.processes_of("worker")]
    assert sorted(first) == sorted([each.address for each in plan.processes_of("scheduler")] * 2)
    assert all(each.environment["PENSTOCK_WORKER_SCHEDULERS"].count(",") == 1 for each in plan.processes_of("worker"))


def test_a_setting_reaches_the_processes_of_its_tier_alone():
    plan = plan_of(settings=("PENSTOCK_QUEUE_MAX_DEPTH=7",))
    with_it = [each.tier for each in plan.processes if "PENSTOCK_QUEUE_MAX_DEPTH" in each.environment]
    assert with_it == ["queue"]


def test_the_workers_share_the_machine_s_cores():
    threads = {each.environment["PENSTOCK_WORKER_THREADS"] for each in plan_of(workers=2).processes_of("worker")}
    assert threads == {"2"}
    assert plan_of(workers=1).processes_of("worker")[0].environment["PENSTOCK_WORKER_THREADS"] == "4"


def test_each_of_several_envoys_has_its_own_name_port_and_routing():
    plan = plan_of(envoys=2)
    assert [each.name for each in plan.processes_of("envoy")] == ["envoy-1", "envoy-2"]
    assert plan.proxies == ["127.0.0.1:8080", "127.0.0.1:8090"]
    assert [each.environment["PENSTOCK_ROUTING_ENVOY_LISTEN"] for each in plan.processes_of("routing")] == plan.proxies


def test_a_batch_process_has_its_store_in_the_folder_of_the_mesh_and_the_mutual_addresses_of_all_edges():
    plan = plan_of(edges=2, batches=1, envoy=False)
    [batch] = plan.processes_of("batch")
    assert (batch.name, batch.address) == ("batch", "127.0.0.1:7029")
    assert batch.environment["PENSTOCK_BATCH_STORE"] == "/state/batch.sqlite"
    assert batch.environment["PENSTOCK_BATCH_FOLDER"] == "/state/batch-files"
    doors = [each.proxy_doors[0] for each in plan.processes_of("edge")]
    assert batch.environment["PENSTOCK_BATCH_EDGES"].split(",") == doors == ["127.0.0.1:7008", "127.0.0.1:7018"]
    assert {each.environment["PENSTOCK_EDGE_BATCHES"] for each in plan.processes_of("edge")} == {batch.address}


def test_processes_of_the_batch_tier_on_postgres_share_store_and_folder():
    url = "postgresql://postgres@/postgres?host=/state"
    plan = plan_mesh(MeshOptions(store="postgres", batches=2), Path("/state"), "the-key", store=url)
    batches = plan.processes_of("batch")
    assert [each.name for each in batches] == ["batch-1", "batch-2"]
    assert {each.environment["PENSTOCK_BATCH_STORE"] for each in batches} == {url}
    assert len({each.environment["PENSTOCK_BATCH_FOLDER"] for each in batches}) == 1
    addresses = ",".join(each.address for each in batches)
    assert {each.environment["PENSTOCK_EDGE_BATCHES"] for each in plan.processes_of("edge")} == {addresses}


def test_in_a_plaintext_mesh_a_batch_process_uses_the_addresses_of_clients():
    plan = plan_of(edges=2, batches=1, insecure=True)
    [batch] = plan.processes_of("batch")
    assert batch.environment["PENSTOCK_BATCH_EDGES"].split(",") == [each.address for each in plan.processes_of("edge")]
    assert batch.environment["PENSTOCK_BATCH_LISTEN"] == batch.address


def test_without_a_batch_process_edges_run_no_batches():
    plan = plan_of(envoy=False)
    assert not plan.processes_of("batch")
    assert not any("PENSTOCK_EDGE_BATCHES" in each.environment for each in plan.processes)


def test_edges_that_share_a_port_have_the_addresses_of_the_first_and_sockets_of_their_own():
    plan = plan_of(edges=3, shared_edge_port=True)
    edges = plan.processes_of("edge")
    assert {(each.address, each.http, each.proxy_doors) for each in edges} == {
        (plan.grpc, plan.http, ("127.0.0.1:7008", "127.0.0.1:7088"))
    }
    assert {each.environment["PENSTOCK_EDGE_REUSE_PORT"] for each in edges} == {"true"}
    assert len({each.admin_target for each in edges} | {each.health for each in edges}) == 6
    assert [each.environment["PENSTOCK_EDGE_HEALTH_LISTEN"] for each in edges] == [each.health for each in edges]
    (routing,) = plan.processes_of("routing")
    assert routing.environment["PENSTOCK_ROUTING_EDGES"] == "127.0.0.1:7008/127.0.0.1:7088"


def test_every_process_of_a_region_has_its_name_and_an_instance_that_no_other_region_has():
    eu, us = (plan_of(region=name, batches=1) for name in ("eu", "us"))
    for spec in eu.processes:
        expected = None if spec.tier == "envoy" else "eu"
        assert spec.environment.get("PENSTOCK_REGION") == expected, spec.name
    assert not {each.instance_id for each in eu.processes} & {each.instance_id for each in us.processes}
    assert [each.name for each in eu.processes] == [each.name for each in us.processes]


def test_a_mesh_without_a_region_sets_none_and_names_instances_after_processes():
    for spec in plan_of().processes:
        assert "PENSTOCK_REGION" not in spec.environment
        assert spec.instance_id == spec.name


def test_edges_and_proxies_reach_the_doors_of_other_regions_and_open_their_own():
    plan = plan_of(region="eu", other_regions=("us=127.0.0.1:8083", "ap=127.0.0.1:8093"), envoys=2)
    others = "us=127.0.0.1:8083,ap=127.0.0.1:8093"
    assert plan.processes_of("edge")[0].environment["PENSTOCK_EDGE_REGIONS"] == others
    routing = [each.environment for each in plan.processes_of("routing")]
    assert [each["PENSTOCK_ROUTING_REGIONS"] for each in routing] == [others, others]
    assert len({each["PENSTOCK_ROUTING_REGIONS_STATE"] for each in routing}) == 1
    assert routing[0]["PENSTOCK_ROUTING_PROXY_STATS"].split(",") == [each.admin for each in plan.processes_of("envoy")]
    doors = [each["PENSTOCK_ROUTING_REGION_LISTEN"] for each in routing]
    assert doors == ["127.0.0.1:8082", "127.0.0.1:8092"]


def test_the_first_region_is_the_home_of_tenants_and_the_others_follow_it_through_their_links():
    eu = plan_of(region="eu", home_region="eu", other_regions=("us=127.0.0.1:8083", "ap=127.0.0.1:8093"))
    us = plan_of(region="us", home_region="eu", other_regions=("eu=127.0.0.1:9283", "ap=127.0.0.1:9293"))
    [home], [follower] = (each.processes_of("auth") for each in (eu, us))
    assert settings_of(home) == {"HOME": "eu", "SPENDING_REGIONS": "us,ap"}
    assert settings_of(follower) == {"HOME": "eu", "HOME_DOOR": "127.0.0.1:9283"}
    assert eu.processes_of("routing")[0].environment["PENSTOCK_ROUTING_REGION_AUTHS"] == home.address
    assert "PENSTOCK_ROUTING_REGION_AUTHS" not in us.processes_of("routing")[0].environment


def settings_of(auth):
    """The settings of auth that are about regions."""
    names = ("HOME", "HOME_DOOR", "SPENDING_REGIONS")
    return {name: auth.environment[key] for name in names if (key := f"PENSTOCK_AUTH_{name}") in auth.environment}


def test_all_regions_have_the_same_secrets_and_without_proxies_each_has_tenants_of_its_own():
    shared, others = {"PEPPER": "p", "MESH_SECRET": "m"}, ("us=127.0.0.1:8083",)
    options = MeshOptions(region="eu", home_region="eu", other_regions=others)
    [auth] = plan_mesh(options, Path("/state"), "k", envoy="/envoy", auth_secrets=shared).processes_of("auth")
    assert (auth.environment["PENSTOCK_AUTH_PEPPER"], auth.environment["PENSTOCK_AUTH_MESH_SECRET"]) == ("p", "m")
    [auth] = plan_mesh(options, Path("/state"), "k", auth_secrets=shared).processes_of("auth")
    assert settings_of(auth) == {}


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ([], "1 to 4 different regions"),
        (["a", "b", "c", "d", "e"], "1 to 4 different regions"),
        (["eu", "eu"], "1 to 4 different regions"),
        (["eu", "US"], "lower-case"),
        (["eu", "a" * 33], "at most 32 characters"),
    ],
)
def test_names_of_regions_are_few_different_and_short(names, error):
    check_names(["eu", "us-west-1", "ap", "a" * 32])
    with pytest.raises(ValueError, match=error):
        check_names(names)
