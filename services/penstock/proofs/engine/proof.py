"""What the engine itself promises, measured on the model that workers serve: from figures to lines."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from penstock.proofs.card import Card, Line, at_least, at_most, exactly, told
from penstock.proofs.engine.bench import SLOTS, Bench, open_bench
from penstock.proofs.engine.crowd import BLOCKS, Crowd
from penstock.proofs.engine.long_prompt import BUDGET, DECODES, IDS, LONG, LongPrompt, long_prompt, simulated
from penstock.proofs.engine.mixed_lengths import OUTPUT, PROMPT, Flow, measure_flows
from penstock.proofs.engine.options import EngineProofOptions
from penstock.proofs.engine.plot import plot_engine
from penstock.proofs.engine.roofline import Decode, measure_decodes
from penstock.proofs.engine.texts import Texts, compare_texts
from penstock.worker.engine.cores import available_cores

OVERHEAD = 10.0  # % of a decode step at a batch of 8
GAIN = 3.0  # times the throughput of static batches


def prove(asked: EngineProofOptions, model: str, console: Console) -> Card:
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def say(text: str) -> None:
            live.update(escape(text), refresh=True)

        say(f"loading {model}")
        bench = open_bench(model, available_cores())
        bench.warm()
        decodes = measure_decodes(bench, say)
        texts = compare_texts(bench, asked.seed, say)
        crowds = _crowds(bench, asked, say)
        flows = measure_flows(bench, asked.seed, asked.requests, say)
    card = Card(proof="engine", void=_void(crowds["batch"]))
    card.lines += [*decode_lines(decodes), *flow_lines(flows), *text_lines(texts), *long_lines(long_prompt())]
    for name, crowd in crowds.items():
        card.lines += crowd_lines(name, crowd)
    card.notes.append(
        f"mixed lengths: {asked.requests} requests at once, {SLOTS} slots; log-normal prompts of {PROMPT.low} to "
        f"{PROMPT.high} tokens, mean {PROMPT.mean}, and outputs of {OUTPUT.low} to {OUTPUT.high}, mean {OUTPUT.mean}"
    )
    if asked.plot:
        plot_engine(decodes, flows, asked.plot)
        card.notes.append(f"plot: {asked.plot}")
    return card


def _crowds(bench: Bench, asked: EngineProofOptions, say: Callable[[str], None]) -> dict[str, Crowd]:
    say(f"a crowd of {asked.crowd:,} through the batch")
    batch = simulated(blocks=BLOCKS, slots=SLOTS, context=128)
    crowds = {"batch": Crowd(batch, asked.crowd, IDS, asked.seed)}
    crowds["batch"].run()
    if asked.real_crowd:
        say(f"a crowd of {asked.real_crowd} through the real engine")
        bench.begin([], blocks=BLOCKS)
        crowds["engine"] = Crowd(bench.watched.engine, asked.real_crowd, bench.ids, asked.seed)
        crowds["engine"].run()
    return crowds


def _void(crowd: Crowd) -> str:
    unseen = [name for name in ("preempted", "cached", "cancelled") if not crowd.counts[name]]
    return f"nobody of the crowd was {' or '.join(unseen)}: give it more requests with --crowd" if unseen else ""


def decode_lines(decodes: Sequence[Decode]) -> list[Line]:
    lines = []
    for each in decodes:
        lines.append(told(f"decode step at batch {each.batch}", each.step * 1e3, "ms"))
        lines.append(told(f"roofline at batch {each.batch}", each.roofline * 1e3, "ms"))
        lines.append(told(f"of the roofline reached at batch {each.batch}", 100 * each.roofline / each.step, "%"))
        if each.batch == 8:
            lines.append(at_most("time outside the forward at batch 8", 100 * each.outside, OVERHEAD, "%"))
    return lines


def flow_lines(flows: Mapping[str, Flow]) -> list[Line]:
    rate = {name: flow.rate for name, flow in flows.items()}
    steps = {name: len(flow.seconds) for name, flow in flows.items()}
    return [
        *(told(f"mixed lengths, {name} batches", each, "tokens/s") for name, each in rate.items()),
        at_least("continuous over static batches that pad", rate["continuous"] / rate["padded"], GAIN, "x"),
        told("continuous over static batches that do not", rate["continuous"] / rate["naive"], "x"),
        told("steps of static batches over continuous", steps["naive"] / steps["continuous"], "x"),
    ]


def text_lines(texts: Texts) -> list[Line]:
    return [
        told("greedy tokens compared", texts.greedy),
        exactly("of them other than by full recompute", texts.greedy_different, 0),
        told("drawn tokens compared", texts.drawn),
        exactly("of them other in a crowd than alone", texts.drawn_different, 0),
    ]


def long_lines(found: LongPrompt) -> list[Line]:
    least = -(-LONG // (BUDGET - DECODES))
    return [
        at_most(f"steps of a {LONG:,} token prompt beside {DECODES} decodes", found.steps, least),
        exactly("steps that a decode missed meanwhile", found.missed, 0),
        exactly("steps above the token budget", found.over_budget, 0),
    ]


def crowd_lines(name: str, crowd: Crowd) -> list[Line]:
    counts = crowd.counts
    return [
        told(f"{name}'s crowd: requests", crowd.requests),
        told(f"{name}'s crowd: preempted", counts["preempted"]),
        told(f"{name}'s crowd: cancelled", counts["cancelled"]),
        exactly(f"{name}'s crowd: tokens or requests lost", crowd.wrong, 0),
        exactly(f"{name}'s crowd: texts changed", counts["changed"], 0),
        exactly(f"{name}'s crowd: blocks not back", counts["blocks not back"], 0),
    ]
