"""The file of the audit log: restarts, crashes, rotation, other writers and full disks."""

import resource
import signal
import stat
from contextlib import contextmanager

import pytest

from penstock.chassis.config import ConfigError
from penstock.chassis.operators.audit.chain import Entry, digest, parse
from penstock.chassis.operators.audit.file import BLOCK_BYTES, AuditFile
from penstock.chassis.operators.audit.verify import Verification


def entry(action, parameters=None):
    fields = {"time": "2026-11-25T13:00:00Z", "tier": "auth", "instance": "auth-1", "actor": "unix:1000", "peer": ""}
    return Entry(**fields, action=action, result="OK", parameters=parameters or {})


@contextmanager
def opened(path):
    file = AuditFile(str(path), entry)
    file.open()
    try:
        yield file
    finally:
        file.close()


def verified(*paths, head=""):
    verification = Verification(head)
    for path in paths:
        with path.open("rb") as lines:
            verification.add_file(lines)
    return verification.finish()


def actions(path):
    return [parse(line)["action"] for line in path.read_bytes().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def test_a_new_file_is_private_and_begins_a_chain(path):
    with opened(path) as file:
        file.append(entry("keys.create"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert actions(path) == ["log.begin", "keys.create"]
    assert verified(path, head=file.chain.head).broken_at == 0


def test_a_restart_continues_the_chain(path):
    for _ in range(3):
        with opened(path) as file:
            file.append(entry("keys.create"))
    assert actions(path) == ["log.begin", "keys.create", *["log.resume", "keys.create"] * 2]
    report = verified(path)
    assert (report.broken_at, report.lines, report.torn_lines) == (0, 6, [])


@pytest.mark.parametrize("size", [1, 40, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES])
def test_a_line_that_a_crash_cut_off_is_kept_and_chained_over(path, size):
    with opened(path) as file:
        file.append(entry("keys.create"))
    torn = b'{"seq":3,"actor":"' + b"a" * size
    with path.open("ab") as raw:
        raw.write(torn[:size] if size < 18 else torn)
    with opened(path) as file:
        file.append(entry("keys.revoke"))
    report = verified(path)
    assert (report.broken_at, report.torn_lines, report.lines) == (0, [3], 4)
    assert path.read_bytes().splitlines()[2].startswith(b"{")


def test_a_crash_before_the_newline_loses_nothing(path):
    with opened(path) as file:
        file.append(entry("keys.create"))
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    with opened(path):
        pass
    report = verified(path)
    assert (report.broken_at, report.torn_lines, report.lines) == (0, [], 3)


def test_a_crash_in_the_first_line_is_chained_over(path):
    path.write_bytes(b'{"seq":1')
    with opened(path):
        pass
    report = verified(path)
    assert (report.broken_at, report.torn_lines, report.lines) == (0, [1], 1)


def test_a_second_process_cannot_write_to_the_file(path):
    with opened(path), pytest.raises(ConfigError, match="in use by another process"):
        AuditFile(str(path), entry).open()
    with opened(path):
        pass


def test_after_a_rotation_the_new_file_names_the_last_line_of_the_former(path, tmp_path):
    former = tmp_path / "audit.1.jsonl"
    with opened(path) as file:
        file.append(entry("keys.create"))
        path.rename(former)
        file.append(entry("keys.revoke"))
    assert (actions(former), actions(path)) == (["log.begin", "keys.create"], ["log.begin", "keys.revoke"])
    assert verified(path).continues == digest(former.read_bytes().splitlines()[-1])
    assert verified(former, path).broken_at == 0


def test_a_deleted_file_is_begun_anew_with_the_hash_of_its_last_line(path):
    with opened(path) as file:
        head = file.chain.head
        path.unlink()
        file.append(entry("keys.revoke"))
    assert verified(path).continues == head


def test_another_writer_is_recorded_and_breaks_the_chain(path):
    with opened(path) as file:
        with path.open("ab") as raw:
            raw.write(b'{"seq":2,"previous":"","action":"keys.create"}\n')
        file.append(entry("keys.revoke"))
    assert actions(path) == ["log.begin", "keys.create", "log.changed", "keys.revoke"]
    assert verified(path).broken_at == 2


def test_truncation_by_another_writer_is_recorded_and_breaks_the_chain(path):
    with opened(path) as file:
        file.append(entry("keys.create"))
        path.write_bytes(b"")
        file.append(entry("keys.revoke"))
    assert actions(path) == ["log.changed", "keys.revoke"]
    assert verified(path).broken_at == 1


@contextmanager
def file_size_limit(size):
    """Let writes beyond `size` bytes fail in the block, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("room", [0, 1, 50])
def test_a_write_that_fails_leaves_the_file_as_it_was(path, room):
    with opened(path) as file:
        before = path.read_bytes()
        with file_size_limit(len(before) + room), pytest.raises(OSError, match="File too large"):
            file.append(entry("keys.create"))
        assert path.read_bytes() == before
        file.append(entry("keys.create"))
    assert verified(path).broken_at == 0
    assert actions(path) == ["log.begin", "keys.create"]
