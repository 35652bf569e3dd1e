"""The watermark of the store's volume."""

import math
import os

import pytest

from penstock.auth.config import AuthConfig
from penstock.auth.store.disk_usage import HYSTERESIS, Watermark, free_bytes, used_share
from penstock.chassis.config import ConfigError, load

BLOCKS = 1_000


def volume(free):
    def statvfs(folder):
        assert folder == "/data"
        return os.statvfs_result((4096, 4096, BLOCKS, free + 50, free, 0, 0, 0, 0, 255))

    return statvfs


@pytest.mark.parametrize(("free", "used"), [(1_000, 0.0), (250, 0.75), (0, 1.0)])
def test_the_used_share_is_what_an_unprivileged_process_cannot_write(free, used):
    assert used_share("/data/auth.sqlite", volume(free)) == used


def test_the_free_bytes_are_what_an_unprivileged_process_can_write():
    assert free_bytes("/data/auth.sqlite", volume(100)) == 100 * 4096


def test_a_store_in_memory_uses_no_volume():
    assert used_share(":memory:", volume(0)) == 0.0
    assert free_bytes(":memory:", volume(0)) == math.inf


def test_the_watermark_changes_once_above_and_once_clearly_below():
    mark = Watermark(0.9)
    shares = [0.5, 0.89, 0.9, 0.95, 0.9, 0.9 - HYSTERESIS / 2, 0.9 - 2 * HYSTERESIS, 0.5, 0.91]
    assert [mark.update(each) for each in shares] == [*(False, False, True, False, False, False, True, False, True)]
    assert (mark.is_high, mark.used) == (True, 0.91)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DISK_WATERMARK", "0"),
        ("DISK_WATERMARK", "1.1"),
        ("LEDGER_MAX_ROWS", "19999"),
        ("LEDGER_RETENTION", "0"),
        ("HOURLY_RETENTION", "0"),
        ("REGION", "x" * 64),
    ],
)
def test_a_setting_of_the_store_out_of_range_prevents_the_start(name, value):
    with pytest.raises(ConfigError, match=f"PENSTOCK_AUTH_{name}"):
        load(AuthConfig, "auth", {f"PENSTOCK_AUTH_{name}": value})
