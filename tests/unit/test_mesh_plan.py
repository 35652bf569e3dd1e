"""The plan of the processes that `penstock up` starts."""

from pathlib import Path

from penstock.local_mesh.plan import MeshOptions, plan_mesh


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
