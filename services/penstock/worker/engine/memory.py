"""How much memory a KV pool may take where nobody says, and what a pool means for the model's context."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil
import structlog

from penstock.worker.engine.card import ModelCard

CPU_SHARE = 0.25  # of what is free: other workers may start beside this one and see the same memory free
CPU_MOST = 4 << 30  # bytes; on a CPU more sequences than fit here would each be too slow to read
GPU_SHARE = 0.85  # of what the weights leave: the rest is for a step's activations
LEAST_CONTEXT = 64  # tokens; below it a model is of no use

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


class Files(NamedTuple):
    """Where a version of control groups says how full a group is."""

    mount: str
    limit: str
    usage: str
    cache: str  # line of memory.stat


_VERSIONS = {  # by what /proc/self/cgroup names the hierarchy
    "": Files("", "memory.max", "memory.current", "inactive_file"),
    "memory": Files("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}

log = structlog.get_logger()


def cpu_pool_bytes() -> int:
    free = min(psutil.virtual_memory().available, *container_rooms(MEMBERSHIP, CGROUPS))
    return min(int(free * CPU_SHARE), CPU_MOST)


def gpu_pool_bytes(free: int) -> int:
    return int(free * GPU_SHARE)


def container_rooms(membership: Path, cgroups: Path) -> list[int]:
    """Bytes that each control group around this process still allows, without the file cache, which gives way."""
    rooms = [1 << 62]
    for line in membership.read_text(encoding="utf-8").splitlines() if membership.exists() else ():
        _, controllers, path = line.split(":", 2)
        for version in _VERSIONS.keys() & set(controllers.split(",")):
            rooms += _rooms(cgroups, PurePosixPath(path), _VERSIONS[version])
    return rooms


def fit_context(card: ModelCard, blocks: int, block_size: int) -> ModelCard:
    """The card, its context cut to what the pool holds for one sequence. Raises ValueError when that is no use."""
    held = blocks * block_size
    if held >= card.context_length:
        return card
    if held < LEAST_CONTEXT:
        raise ValueError(
            f"a KV pool of {held} tokens is too small to serve {card.name}; set kv_bytes or kv_blocks higher"
        )
    log.warning("context_cut_to_kv_pool", model=card.name, model_context=card.context_length, pool_tokens=held)
    return replace(card, context_length=held)


def _rooms(cgroups: Path, path: PurePosixPath, files: Files) -> Iterator[int]:
    # Inside a container the path may be the host's, of which only the end, or nothing, is mounted here.
    for group in (path, *path.parents):
        folder = cgroups / files.mount / group.relative_to("/")
        most = _first_word(folder / files.limit)
        used = _first_word(folder / files.usage)
        if most.isdigit() and used.isdigit():
            yield max(0, int(most) - int(used) + _figure(folder / "memory.stat", files.cache))


def _first_word(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip() if file.exists() else ""


def _figure(file: Path, name: str) -> int:
    lines = _first_word(file).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
