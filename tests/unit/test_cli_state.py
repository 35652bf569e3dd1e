"""Commands find the mesh that runs on this machine by its state file."""

import os
from dataclasses import replace

import click
import pytest

from penstock.cli.options import Addresses, find_failover, find_processes, find_target, find_tier
from penstock.local_mesh.plan import BASE_PORT
from penstock.local_mesh.state import MeshState, ProcessState, read_state, write_state

UNUSED_PID = 2**22 + 1  # above the largest process ID


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_API_KEY", raising=False)


def note(base_port, pid=None, admin="", region=""):
    address = f"127.0.0.1:{base_port + 5}"
    worker = ProcessState(name="worker-2", tier="worker", pid=1, address=address, http="", admin=admin)
    return MeshState(
        pid=pid or os.getpid(),
        base_port=base_port,
        grpc=f"127.0.0.1:{base_port + 1}",
        http=f"127.0.0.1:{base_port + 80}",
        proxy="",
        api_key=f"pk_dev_{base_port}",
        model="m",
        log_folder="",
        processes=(worker,),
        region=region,
    )


def test_the_only_running_mesh_is_found_at_any_ports():
    write_state(note(39_600))
    write_state(note(41_000, pid=UNUSED_PID))
    assert find_target("", "") == ("127.0.0.1:39601", "pk_dev_39600")
    assert find_tier("worker-2", "") == find_tier("worker", "") == "127.0.0.1:39605"


def test_a_process_is_administered_at_its_admin_address_by_any_of_its_names():
    write_state(note(39_600, admin="unix:/run/worker-2.admin"))
    for tier, target in (("worker-2", ""), ("worker", ""), ("worker", "127.0.0.1:39605")):
        assert find_tier(tier, target) == "unix:/run/worker-2.admin"
    assert find_tier("worker", "127.0.0.1:7005") == "127.0.0.1:7005"
    assert find_processes(()) == ({"unix:/run/worker-2.admin": "worker-2"}, ())


def test_of_several_meshes_the_one_at_the_default_ports_is_used():
    for base_port in (39_600, BASE_PORT):
        write_state(note(base_port))
    assert find_target("", "")[1] == f"pk_dev_{BASE_PORT}"


def test_failover_targets_are_addresses_or_regions_other_than_the_target():
    for base_port, region in ((39_600, "eu"), (41_000, "us")):
        write_state(replace(note(base_port, region=region), api_key="pk_dev_of_both"))
    home, key = find_target("eu", "")
    assert find_failover(("us", "127.0.0.1:41001"), home, key) == ("127.0.0.1:41001",) * 2
    assert find_failover((), home, key) == ()
    for wrong in ("eu", home):
        with pytest.raises(click.UsageError, match="is the target itself"):
            find_failover((wrong,), home, key)
    with pytest.raises(click.UsageError, match="no region 'ap' runs here"):
        find_failover(("ap",), home, key)


def test_the_key_of_a_local_mesh_is_sent_to_no_other_one():
    for base_port, region in ((39_600, "eu"), (41_000, "us")):
        write_state(note(base_port, region=region))
    home, key = find_target("eu", "")
    for other in ("us", "us.example:443"):
        with pytest.raises(click.UsageError, match="name a key for both with --key"):
            find_failover((other,), home, key)
    assert find_failover(("us.example:443",), home, "pk_of_the_caller") == ("us.example:443",)


@pytest.mark.parametrize("text", ["a:1,", ",", "a:1,a:1"])
def test_failover_targets_are_named_once(text):
    with pytest.raises(click.BadParameter):
        Addresses().convert(text, None, None)


def test_of_several_meshes_at_other_ports_the_caller_has_to_choose():
    for base_port in (39_600, 41_000):
        write_state(note(base_port))
    with pytest.raises(click.UsageError, match=r"--target 127\.0\.0\.1:39601 or 127\.0\.0\.1:41001"):
        find_target("", "")
    with pytest.raises(click.UsageError, match=r"--target 127\.0\.0\.1:39605 or 127\.0\.0\.1:41005"):
        find_tier("worker", "")
    assert find_target("127.0.0.1:41001", "") == ("127.0.0.1:41001", "pk_dev_41000")


def test_a_region_names_its_mesh_in_the_place_of_an_address():
    for base_port, region in ((39_600, "eu"), (41_000, "us")):
        write_state(note(base_port, region=region))
    assert find_target("us", "") == ("127.0.0.1:41001", "pk_dev_41000")
    assert find_tier("worker", "eu") == "127.0.0.1:39605"
    both = {"127.0.0.1:39605": "eu-worker-2", "127.0.0.1:41005": "us-worker-2"}
    assert find_processes(("eu", "other:7201", "us")) == (both, ("other:7201",))


def test_without_a_target_the_caller_chooses_among_regions_unless_one_has_the_default_ports():
    for base_port, region in ((39_600, "eu"), (41_000, "us")):
        write_state(note(base_port, region=region))
    for find in (lambda: find_target("", ""), lambda: find_tier("worker", ""), lambda: find_processes(())):
        with pytest.raises(click.UsageError, match=r"--target eu or us"):
            find()
    write_state(note(BASE_PORT, region="ap"))
    assert find_target("", "")[1] == f"pk_dev_{BASE_PORT}"


def test_a_target_that_is_neither_an_address_nor_a_region_here_is_an_error():
    write_state(note(39_600, region="eu"))
    for find in (lambda: find_target("us", ""), lambda: find_tier("worker", "us"), lambda: find_processes(("us",))):
        with pytest.raises(click.UsageError, match="no region 'us' runs here; an address has a port"):
            find()


def test_the_key_of_a_mesh_is_sent_only_to_that_mesh(monkeypatch):
    write_state(note(BASE_PORT))
    assert find_target("elsewhere:7001", "") == ("elsewhere:7001", "")
    monkeypatch.setenv("PENSTOCK_API_KEY", "pk_mine")
    assert find_target("elsewhere:7001", "") == ("elsewhere:7001", "pk_mine")
    assert find_target("elsewhere:7001", "pk_given") == ("elsewhere:7001", "pk_given")


@pytest.mark.parametrize("failure", [ProcessLookupError, PermissionError])
def test_the_state_file_of_a_command_that_has_ended_is_ignored(monkeypatch, failure):
    def kill(*_):
        raise failure

    write_state(note(BASE_PORT))
    monkeypatch.setattr(os, "kill", kill)
    assert read_state(BASE_PORT) is None
    with pytest.raises(click.UsageError, match="no mesh runs here"):
        find_target("", "")
    with pytest.raises(click.UsageError, match="no auth runs here"):
        find_tier("auth", "")
