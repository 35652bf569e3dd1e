from dataclasses import replace

import pytest

from penstock.worker.engine.machine import memory
from penstock.worker.engine.model_card import ModelCard

CARD = ModelCard(
    name="m",
    context_length=4096,
    vocab_size=300,
    eos_ids=(),
    bos_id=None,
    add_bos=False,
    chat_template="",
    tokenizer_json="{}",
)
MEGABYTE = 1 << 20


def group(folder, limit, usage, cached, *, version=2):
    """Write the files of one control group. limit: bytes, or "max"."""
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\nfile 7\n")


def memory_limit(tmp_path, membership):
    (tmp_path / "cgroup").write_text(membership)
    return min(memory.cgroup_free_bytes(tmp_path / "cgroup", tmp_path / "fs"))


def test_a_containers_limit_counts_without_its_file_cache(tmp_path):
    group(tmp_path / "fs", 100 * MEGABYTE, 70 * MEGABYTE, 20 * MEGABYTE)
    assert memory_limit(tmp_path, "0::/\n") == 50 * MEGABYTE


def test_the_tightest_group_on_the_way_up_counts(tmp_path):
    group(tmp_path / "fs" / "pod" / "worker", "max", 10, 0)
    group(tmp_path / "fs" / "pod", 1000, 900, 0)
    assert memory_limit(tmp_path, "0::/pod/worker\n") == 100


def test_a_path_of_the_host_that_is_not_mounted_falls_back_to_its_parents(tmp_path):
    group(tmp_path / "fs", 1000, 400, 0)
    assert memory_limit(tmp_path, "0::/kubepods/pod7/abc\n") == 600


def test_version_1_groups_are_read_too(tmp_path):
    group(tmp_path / "fs" / "memory" / "box", 1000, 400, 50, version=1)
    assert memory_limit(tmp_path, "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:memory:/box\n0::/\n") == 650


def test_without_control_groups_memory_is_not_limited(tmp_path):
    assert min(memory.cgroup_free_bytes(tmp_path / "none", tmp_path)) > 1 << 60


def test_a_cpu_pool_is_a_share_of_the_tighter_of_machine_and_container_up_to_a_cap(tmp_path, monkeypatch):
    (tmp_path / "cgroup").write_text("0::/\n")
    monkeypatch.setattr(memory, "CGROUP_FILE", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "CGROUP_ROOT", tmp_path)
    group(tmp_path, 64 * MEGABYTE, 0, 0)
    assert memory.cpu_pool_bytes() == 16 * MEGABYTE
    group(tmp_path, 1 << 50, 0, 0)
    assert 16 * MEGABYTE < memory.cpu_pool_bytes() <= memory.MAX_CPU_POOL_BYTES


def test_a_pool_that_holds_the_context_leaves_the_card_alone():
    assert memory.fit_context(CARD, blocks=256, block_size=16) is CARD


def test_a_smaller_pool_cuts_the_context_of_the_card():
    assert memory.fit_context(CARD, blocks=100, block_size=16) == replace(CARD, context_length=1600)


def test_a_pool_that_is_too_small_names_the_settings_to_raise():
    with pytest.raises(ValueError, match=r"48 tokens .* set kv_bytes or kv_blocks higher"):
        memory.fit_context(CARD, blocks=3, block_size=16)
