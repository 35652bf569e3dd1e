"""The hostile proof itself, short: corpora and a few attacks against a real mesh."""

import io

import pytest
from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.hostile import proof
from penstock.proofs.hostile.proof import HostileOptions, hostile

pytestmark = pytest.mark.alone

ATTACKS = ("ping-flood", "rapid-reset")
CORPORA = ("http-framing", "inner-services", "impersonation", "insiders")


@pytest.fixture(scope="module")
def short_phases():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "WARM_UP_S", 1.0)
        patch.setattr(proof, "CALM_S", 4.0)
        patch.setattr(proof, "LAST_CALM_S", 1.0)
        patch.setattr(proof, "MAX_REPETITIONS", 0)
        yield


async def test_a_mesh_is_attacked_beside_an_honest_load(tiny_model, short_phases):
    mesh = MeshOptions(model=tiny_model, engine="sim", edges=1, queues=1, schedulers=1, workers=1)
    options = HostileOptions(attacks=(*ATTACKS, *CORPORA), seconds=1.0, resets=400)
    card = await hostile(options, mesh, Console(file=io.StringIO()))
    assert not card.void_reason
    lines = {line.figure: line for line in card.lines}
    accepted = {
        figure.removeprefix("accepted: "): line.measured for figure, line in lines.items() if "accepted: " in figure
    }
    assert not {group for group, count in accepted.items() if count}, card.notes
    assert len(accepted) >= 7
    assert lines["cases"].measured >= 300
    assert lines["attacks that last"].measured == 4, "each attack on each of its ports"
    assert lines["successes of attacks"].measured == 0
    assert lines["processes lost"].measured == 0
    assert lines["of them streams through Envoy"].measured == 0, card.notes
    assert lines["honest requests beside attacks"].measured > 20
    assert sum(": met" in note or ": MISSED" in note for note in card.notes) == 4 + len(CORPORA)
