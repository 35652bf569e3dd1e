"""Sockets of servers."""

import pytest

from penstock.chassis.server.sockets import bind_socket


def test_a_port_is_shared_only_by_servers_that_all_want_that():
    with bind_socket("127.0.0.1:0", reuses_port=True) as first:
        address = f"127.0.0.1:{first.getsockname()[1]}"
        with bind_socket(address, reuses_port=True) as second:
            assert second.getsockname() == first.getsockname()
        with pytest.raises(OSError, match="in use"):
            bind_socket(address)
    with bind_socket("127.0.0.1:0") as alone, pytest.raises(OSError, match="in use"):
        bind_socket(f"127.0.0.1:{alone.getsockname()[1]}", reuses_port=True)
