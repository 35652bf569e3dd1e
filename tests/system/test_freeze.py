"""A real process of each tier is frozen: its peers detect it, clients lose nothing, and no stale frame is sent."""

import io

import pytest
from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.live import freeze

pytestmark = pytest.mark.alone

SHORT_TIMES = {"FREEZE_S": 4.0, "PAUSE_BETWEEN_S": 1.0}  # s; peers close a silent link within 2 s
# Three workers, so that each scheduler has one even after the first has moved to the other.
REPLICAS = {"queues": 2, "schedulers": 2, "workers": 3}
FREEZE = freeze.FreezeOptions(streams=4, tokens=48, rounds=1, minutes=0.0)


async def test_a_frozen_process_is_detected_and_no_client_loses_a_token(tiny_model, monkeypatch):
    for name, seconds in SHORT_TIMES.items():
        monkeypatch.setattr(freeze, name, seconds)
    mesh = MeshOptions(base_port=0, envoy=False, engine="sim", model=tiny_model, **REPLICAS)
    card = await freeze.freeze(FREEZE, mesh, Console(file=io.StringIO()))
    assert not card.void_reason
    lines = {line.figure: line for line in card.lines}
    undetected = [lines[f"{tier}: freezes that no peer detected"].measured for tier in freeze.TIERS]
    assert undetected == [0] * len(freeze.TIERS)
    exact = [line for line in card.lines if line.goal in ("0", "100") and "links closed" not in line.figure]
    assert len(exact) >= 10
    assert not [line for line in exact if not line.is_met], card.notes
    assert lines["worker: tokens received meanwhile"].measured > 0
