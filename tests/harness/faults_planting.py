"""How a bug is planted into a tier's real code, and the worlds that bring it out."""

import random
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Point
from penstock.faults.mutations import plan, with_poison
from penstock.faults.plan import Act, Count, Fault

MUTANTS = {}

GENERATE, SESSION = "penstock.v1.Inference/Generate", "penstock.v1.Inference/Session"
SUBMIT, DISPATCH = "penstock.mesh.v1.QueueService/Submit", "penstock.mesh.v1.QueueService/Dispatch"
ATTACH = "penstock.mesh.v1.SchedulerService/Attach"
ADMIT, EXECUTE = "penstock.mesh.v1.AdmissionService/Admit", "penstock.mesh.v1.WorkerService/Execute"


@dataclass(frozen=True)
class Mutant:
    """`break_at` says where its worlds break, and how; None: wherever their seeds say."""

    target: object
    attribute: str
    changed: Callable
    break_at: tuple[Act, str, Point] | None
    leaves: Callable | None  # how clients leave, in worlds that do not break: such a bug needs no fault
    world: Callable | None  # what is peculiar to its worlds, which do not break otherwise

    @contextmanager
    def planted(self):
        with patch.object(self.target, self.attribute, self.changed):
            yield

    def plan(self, seed):
        found = plan(seed)
        if self.world:
            return self.world(replace(found, faults=(), roughness=0.0), random.Random(seed))
        if self.leaves:
            asks = (replace(ask, poison_at=None) for ask in found.asks)  # such a client is not to leave
            asks = tuple(self.leaves(ask, number) for number, ask in enumerate(asks))
            return replace(found, asks=asks, faults=(), roughness=0.0)
        if self.break_at is None:
            return found
        act, victim, point = self.break_at
        fault = Fault(act=act, seconds=0.3, victim=victim, pick=0.5, point=point, nth=1 + seed % 3)
        return replace(found, faults=(fault,))


def stays(ask, _):
    return ask


def hurries_off(ask, number):
    """Leaves while its prompt is on its way into the mesh, tokenized, or computed."""
    return replace(ask, leaves_at=None, leaves_after=0.003 + 0.004 * number, timeout=None, tokens=24)


def edges_die_of_poison(planned, draw):
    """A request crashes engines, and edges are lost: what they had comes again by another."""
    deaths = (
        Fault(act=Act.KILL, seconds=0.1, victim="edge", pick=pick, at=draw.uniform(0.3, 0.6)) for pick in (0, 0.9)
    )
    return replace(with_poison(planned, draw), faults=tuple(deaths))


def nobody_hears_of_poison(planned, draw):
    """A request crashes an engine when no scheduler is there and its edge has just lost the worker."""
    poisoned = with_poison(planned, draw)
    ask = next(each for each in poisoned.asks if each.poison_at is not None)
    shape = replace(planned.shape, schedulers=1, workers=2)
    deaf = Fault(act=Act.KILL, seconds=0.3, victim="scheduler", pick=0, at=ask.at + draw.uniform(0.02, 0.04))
    lost = Fault(act=Act.CUT, seconds=0.0, victim="edge", pick=0, point=Point(EXECUTE, TO_CLIENT, "step"), nth=3)
    later = replace(ask, tokens=max(4, ask.tokens), poison_at=3)
    return replace(planned, shape=shape, asks=(later,), faults=(deaf, lost))


def edges_stand_still_while_auth_starts_again(planned, draw):
    """And end soon after they have gone on, so that clients have spent the few retries that they share."""
    gone = draw.uniform(0.3, 0.5)
    on = gone + 0.3 + 4.5
    asks = (replace(ask, at=gone + 0.2, leaves_at=None, leaves_after=None, timeout=None) for ask in planned.asks)
    faults = (
        Fault(act=Act.KILL, seconds=0.8, victim="auth", pick=0, at=gone),
        Fault(act=Act.FREEZE, seconds=on - gone - 0.3, victim="edge", pick=0, at=gone + 0.3),
        Fault(act=Act.TERM, seconds=0.4, victim="edge", pick=0, at=on + draw.uniform(0.9, 1.1)),
    )
    counts = (Count(at=0.0, prompt=(3,)),)  # has auth answer, and lets nobody in
    shape = replace(planned.shape, edges=1)
    return replace(planned, shape=shape, asks=tuple(asks), counts=counts, faults=faults)


def poison_goes_on_by_an_edge_that_knows_of_no_loss(planned, draw):
    """A request crashes an engine when no scheduler is there, and its edge is lost as well."""
    poisoned = with_poison(planned, draw)
    ask = next(each for each in poisoned.asks if each.poison_at is not None)
    shape = replace(planned.shape, edges=2, schedulers=1, workers=2)
    deaf = Fault(act=Act.KILL, seconds=0.3, victim="scheduler", pick=0, at=ask.at + draw.uniform(0.02, 0.04))
    lost = Fault(act=Act.KILL, seconds=2.0, victim="edge", pick=0, point=Point(EXECUTE, TO_CLIENT, "step"), nth=3)
    later = replace(ask, tokens=max(4, ask.tokens), poison_at=3)
    return replace(planned, shape=shape, asks=(later,), counts=(), faults=(deaf, lost))


def poison_goes_on_while_its_scheduler_hears_nobody(planned, draw):
    """A request crashes an engine when the worker cannot reach its own scheduler, and its edge is lost as well."""
    poisoned = with_poison(planned, draw)
    ask = next(each for each in poisoned.asks if each.poison_at is not None)
    shape = replace(planned.shape, edges=2, schedulers=2, workers=2)
    act, victim = draw.choice(((Act.HOLE, "worker"), (Act.FREEZE, "scheduler")))
    deaf = Fault(act=act, seconds=1.5, victim=victim, pick=0, point=Point(ATTACH, TO_SERVER, "started"))
    lost = Fault(act=Act.KILL, seconds=2.0, victim="edge", pick=0, point=Point(EXECUTE, TO_CLIENT, "step"), nth=3)
    later = replace(ask, tokens=max(4, ask.tokens), poison_at=3)
    return replace(planned, shape=shape, asks=(later,), counts=(), faults=(deaf, lost))


def poison_comes_twice(planned, draw):
    """The second time while the first runs; its edge can start it elsewhere once that has crashed an engine."""
    poisoned = with_poison(planned, draw)
    ask = next(each for each in poisoned.asks if each.poison_at is not None)
    first = replace(ask, at=0.0, poison_at=0, in_session=False, is_text=False)
    shape = replace(planned.shape, edges=1, workers=2, slots=1, schedulers=draw.choice((1, 2)), token_budget=8)
    unheard = Fault(act=Act.HOLE, seconds=0.4, victim="worker", pick=0, point=Point(EXECUTE, TO_SERVER, "hello"), nth=2)
    again = replace(first, at=draw.uniform(0.0, 0.02))
    return replace(planned, shape=shape, asks=(first, again), counts=(), faults=(unheard,))


def leaves_midway(ask, _):
    return replace(ask, leaves_at=2, leaves_after=None, timeout=None, tokens=24, ignore_eos=True, stops=())


def mutant(target, name, *, break_at=None, leaves=None, world=None):
    """Note a bug: the decorated function takes the original's place and gets it first."""

    def note(changed):
        original = getattr(target, name)

        def planted(*args, **kwargs):
            return changed(original, *args, **kwargs)

        MUTANTS[changed.__name__] = Mutant(target, name, planted, break_at, leaves, world)
        return changed

    return note
