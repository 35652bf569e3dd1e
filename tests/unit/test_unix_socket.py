"""Sockets of operators: a live one is never taken over, and its path fits."""

import os
import socket

import pytest

from operators import admin_socket
from penstock.chassis.config import ConfigError
from penstock.chassis.operators.unix_socket import MAX_PATH_BYTES, is_path_short, path_of, remove_stale_socket


@pytest.fixture
def path():
    with admin_socket() as listen:
        yield path_of(listen)


@pytest.mark.parametrize("listen", ["unix:/run/a", "unix:///run/a"])
def test_both_forms_of_an_address_name_a_path(listen):
    assert str(path_of(listen)) == "/run/a"


def test_the_socket_of_a_process_that_was_killed_is_removed(path):
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.exists()
    remove_stale_socket(path)
    assert not path.exists()
    remove_stale_socket(path)


def test_the_socket_of_a_process_that_listens_is_left_alone(path):
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(ConfigError, match="another process listens"):
            remove_stale_socket(path)
        assert path.exists()


def test_a_file_is_never_removed(path):
    path.write_text("kept")
    with pytest.raises(ConfigError, match="not a socket"):
        remove_stale_socket(path)
    assert path.read_text() == "kept"


def test_a_path_that_is_too_long_or_has_no_folder_is_an_error(path):
    long = path.with_name("a" * MAX_PATH_BYTES)
    assert not is_path_short(long)
    with pytest.raises(ConfigError, match=f"the limit is {MAX_PATH_BYTES}"):
        remove_stale_socket(long)
    with pytest.raises(ConfigError, match="make the folder"):
        remove_stale_socket(path.parent / "absent" / "admin")


def test_the_longest_path_can_be_bound(path):
    longest = path.with_name("a" * (MAX_PATH_BYTES - len(os.fsencode(path.parent)) - 1))
    assert is_path_short(longest)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(longest))
