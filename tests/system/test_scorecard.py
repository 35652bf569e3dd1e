"""Proofs that judge times or shares, short: cancels over every transport, and wrong clocks."""

import io

import pytest
from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.live import clocks
from scorecards import proved
from tiny_model import write_tiny_model

pytestmark = pytest.mark.alone


async def test_clients_cancel_over_every_transport_and_no_resource_leaks(tmp_path):
    model = str(write_tiny_model(tmp_path / "long", context=2_048))  # its tokens are bytes, and answers are long
    mesh = ("--edges", "1", "--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("cancel", model, *mesh, "--cancels", "192", "--tokens", "400")
    latencies = ("P99 client to engine", "P99 by grpc", "P99 by session", "P99 by http", "P99 client to edge")
    patterns = "of 32 streams", "32 at once", "128 at once"
    assert all(lines[f"{pattern}: {each}"]["measured"] > 0 for pattern in patterns for each in latencies)
    counted = [line for line in card["lines"] if line["goal"] and line["unit"] != "ms"]
    assert len(counted) == 5
    assert all(line["is_met"] for line in counted), card
    assert lines["clients that cancelled"]["measured"] == 192


async def test_clocks_that_are_wrong_or_step_fail_no_request(tiny_model, monkeypatch):
    monkeypatch.setattr(clocks, "WARM_UP_S", 2.0)
    cases = (clocks.ClockCase("edge", -5.0), clocks.ClockCase("queue", 61.0, is_step=True))
    mesh = MeshOptions(model=tiny_model, engine="sim", edges=2, workers=1)
    card = await clocks.clocks(clocks.ClocksOptions(seconds=3.0, cases=cases), mesh, Console(file=io.StringIO()))
    found = {line.figure: line for line in card.lines}
    assert not card.void_reason
    for case in cases:
        assert found[f"{case.label}: failed otherwise"].measured == 0
        assert found[f"{case.label}: rejected share, deviation"].measured < 50.0, "the queue still rejects"
    assert found["figures not back at zero"].measured == 0
