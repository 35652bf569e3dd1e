"""Open descriptors of a process are named, so that new ones can be listed."""

import os
import socket

from penstock.proofs.checks.leaks import new_descriptors, open_descriptors


def test_a_connection_is_named_by_both_ends(tmp_path):
    before = {"auth": open_descriptors(os.getpid())}
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        (tmp_path / "left-open").open("w"),
    ):
        found = new_descriptors(before, {"auth": open_descriptors(os.getpid())}, {"auth"})
        here, there = client.getsockname()[1], server.getsockname()[1]
    assert any(str(here) in line and str(there) in line for line in found)
    assert any("left-open" in line for line in found)
    assert all(line.startswith("auth opened ") for line in found)


def test_only_processes_whose_figures_grew_are_reported():
    assert new_descriptors(
        {"auth": {}, "edge-1": {}}, {"auth": {"3 pipe": "pipe"}, "edge-1": {"4 pipe": "pipe"}}, {"edge-1"}
    ) == ["edge-1 opened pipe"]


def test_a_process_that_has_ended_has_no_descriptors():
    assert open_descriptors(2**22 + 1) == {}
