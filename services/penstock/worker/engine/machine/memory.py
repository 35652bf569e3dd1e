"""The default size of a KV pool from free memory, and the context length that a pool allows."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil
import structlog

from penstock.worker.engine.model_card import ModelCard

CPU_POOL_SHARE = 0.25  # of free memory, as other workers may start beside this one and see the same memory as free
MAX_CPU_POOL_BYTES = 4 << 30  # a CPU would be too slow for more sequences than fit into this
GPU_POOL_SHARE = 0.85  # of the memory that the weights leave; the rest is for the activations of a step
MIN_CONTEXT_TOKENS = 64  # a smaller context is of no use

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_FILE = Path("/proc/self/cgroup")


class CgroupFiles(NamedTuple):
    """Files of a version of control groups that have the memory limit and the usage of a group."""

    mount: str
    limit: str
    usage: str
    cache: str  # line of memory.stat


_CGROUP_VERSIONS = {  # by the controller in /proc/self/cgroup
    "": CgroupFiles("", "memory.max", "memory.current", "inactive_file"),
    "memory": CgroupFiles("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}

log = structlog.get_logger()


def cpu_pool_bytes() -> int:
    free = min(psutil.virtual_memory().available, *cgroup_free_bytes(CGROUP_FILE, CGROUP_ROOT))
    return min(int(free * CPU_POOL_SHARE), MAX_CPU_POOL_BYTES)


def gpu_pool_bytes(free: int) -> int:
    return int(free * GPU_POOL_SHARE)


def cgroup_free_bytes(cgroup_file: Path, cgroup_root: Path) -> list[int]:
    """Return the bytes that each control group of this process still allows; inactive file cache counts as free."""
    free_bytes = [1 << 62]
    for line in cgroup_file.read_text(encoding="utf-8").splitlines() if cgroup_file.exists() else ():
        _, controllers, path = line.split(":", 2)
        for version in _CGROUP_VERSIONS.keys() & set(controllers.split(",")):
            free_bytes += _free_bytes(cgroup_root, PurePosixPath(path), _CGROUP_VERSIONS[version])
    return free_bytes


def fit_context(card: ModelCard, blocks: int, block_size: int) -> ModelCard:
    """Return the card with its context cut to the size of the pool. Raises ValueError if the pool is too small."""
    pool_tokens = blocks * block_size
    if pool_tokens >= card.context_length:
        return card
    if pool_tokens < MIN_CONTEXT_TOKENS:
        raise ValueError(
            f"a KV pool of {pool_tokens} tokens is too small to serve {card.name}; set kv_bytes or kv_blocks higher"
        )
    log.warning("context_cut_to_kv_pool", model=card.name, model_context=card.context_length, pool_tokens=pool_tokens)
    return replace(card, context_length=pool_tokens)


def _free_bytes(cgroup_root: Path, path: PurePosixPath, files: CgroupFiles) -> Iterator[int]:
    # Inside a container the path may be the host's, of which only the end, or no part, is mounted here.
    for group in (path, *path.parents):
        folder = cgroup_root / files.mount / group.relative_to("/")
        limit = _read_text(folder / files.limit)
        usage = _read_text(folder / files.usage)
        if limit.isdigit() and usage.isdigit():
            yield max(0, int(limit) - int(usage) + _stat_value(folder / "memory.stat", files.cache))


def _read_text(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip() if file.exists() else ""


def _stat_value(file: Path, name: str) -> int:
    lines = _read_text(file).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
