"""Lines and isolated starts of the proofs of drains and freezes."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.bench.transcript import TokenTranscript, stages_before_decode
from penstock.local_mesh.plan import MeshOptions, plan_mesh
from penstock.proofs.live.drain import ttft_lines
from penstock.proofs.testbed.faults.cpu_stress import CpuStress, stress_lines
from penstock.proofs.testbed.idle_start import UNREACHABLE_ADDRESS, isolated_spec
from penstock.v1.inference_pb2 import Timeline

BEGAN_UNIX_S = 1_800_000_000.0


def answered(ttft):
    return TokenTranscript(0, BEGAN_UNIX_S, request_id="r", arrivals=[BEGAN_UNIX_S + ttft])


def line(lines, figure):
    return next(each for each in lines if each.figure == figure)


@pytest.mark.parametrize(("slowest", "is_met"), [(0.11, True), (0.13, False)])
def test_ttft_of_a_rolling_restart_is_compared_with_the_baseline_regardless_of_the_cost_of_a_start(slowest, is_met):
    baseline, rolling = [answered(0.1)] * 100, [answered(0.1)] * 98 + [answered(slowest)] * 2
    lines = ttft_lines(baseline, [answered(0.2)] * 100, rolling)
    assert line(lines, "P99 TTFT ratio").is_met is is_met
    assert line(lines, "P99 TTFT ratio to starts without peers").measured == pytest.approx(slowest / 0.2, rel=1e-4)


def test_stages_of_the_first_token_end_before_decode():
    timeline = Timeline()
    for tier, name, nanos in (
        ("queue", "wait", 250_000_000),
        ("worker", "prefill", 5_000_000),
        ("worker", "decode", 9),
    ):
        timeline.stages.add(tier=tier, name=name).length.FromNanoseconds(nanos)
    assert stages_before_decode(timeline) == {"queue wait": 0.25, "worker prefill": 0.005}


@pytest.mark.parametrize("tier", ["auth", "edge", "queue", "scheduler", "worker"])
def test_an_isolated_process_has_no_address_of_the_mesh(tier):
    spec = plan_mesh(MeshOptions(), Path("/folder"), "key").processes_of(tier)[0]
    like = isolated_spec(spec, Path("/folder"))
    assert like.name != spec.name
    assert like.environment[f"PENSTOCK_{tier.upper()}_LISTEN"].endswith(":0")
    shared = {name for name, value in like.environment.items() if ":70" in value or value.endswith("auth.sqlite")}
    assert shared == set()
    peers = [name for name in spec.environment if name.endswith(("AUTHS", "QUEUES", "SCHEDULERS"))]
    assert [like.environment[each] for each in peers] == [UNREACHABLE_ADDRESS] * len(peers)


def test_a_link_that_is_closed_while_all_processes_are_only_slow_is_a_false_alarm(tmp_path):
    for tier, seconds in (("edge-1", (-1, 5)), ("worker-2", (11,)), ("scheduler-1", (1,)), ("queue-1", (2,))):
        events = [
            {"event": "link_down", "timestamp": datetime.fromtimestamp(BEGAN_UNIX_S + at, UTC).isoformat()}
            for at in seconds
        ]
        (tmp_path / f"{tier}.log").write_text("".join(json.dumps(each) + "\n" for each in events).replace(": ", ":"))
    lines = stress_lines(CpuStress(BEGAN_UNIX_S, BEGAN_UNIX_S + 10, 99.0), tmp_path)
    alarms = line(lines, "links closed meanwhile")
    assert (alarms.measured, alarms.is_met) == (2, False)
    assert line(lines, "host CPU meanwhile").is_met
    assert not line(
        stress_lines(CpuStress(BEGAN_UNIX_S, BEGAN_UNIX_S + 10, 60.0), tmp_path), "host CPU meanwhile"
    ).is_met
