"""What the engine itself promises, measured on the model that workers serve: from figures to lines."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from penstock.proofs.card import CardLine, ProofCard, at_least, at_most, exactly, reported
from penstock.proofs.engine.batch_invariance import TextComparison, compare_texts
from penstock.proofs.engine.batch_stress import KV_BLOCKS, BatchStress
from penstock.proofs.engine.engine_bench import SLOTS, EngineBench, open_engine_bench
from penstock.proofs.engine.long_prompt import (
    DECODING_SEQS,
    LONG_PROMPT_TOKENS,
    TOKEN_BUDGET,
    TOKEN_IDS,
    LongPromptResult,
    run_long_prompt,
    simulated_engine,
)
from penstock.proofs.engine.mixed_lengths import OUTPUT, PROMPT, ThroughputCurve, measure_throughput
from penstock.proofs.engine.options import EngineProofOptions
from penstock.proofs.engine.plot import plot_engine
from penstock.proofs.engine.roofline import DecodeStep, measure_decode_steps
from penstock.worker.engine.machine.cpu_limits import available_cores

MAX_OVERHEAD_PERCENT = 10.0  # % of a decode step at a batch of 8
MIN_SPEEDUP = 3.0  # times the throughput of static batches


def prove(options: EngineProofOptions, model: str, console: Console) -> ProofCard:
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def say(text: str) -> None:
            live.update(escape(text), refresh=True)

        say(f"loading {model}")
        bench = open_engine_bench(model, available_cores())
        bench.write_kv_memory()
        decodes = measure_decode_steps(bench, say)
        texts = compare_texts(bench, options.seed, say)
        crowds = _run_stress(bench, options, say)
        flows = measure_throughput(bench, options.seed, options.requests, say)
    card = ProofCard(proof="engine", void_reason=_void_reason(crowds["batch"]))
    card.lines += [
        *decode_lines(decodes),
        *throughput_lines(flows),
        *text_lines(texts),
        *long_prompt_lines(run_long_prompt()),
    ]
    for name, crowd in crowds.items():
        card.lines += stress_lines(name, crowd)
    card.notes.append(
        f"mixed lengths: {options.requests} requests at once, {SLOTS} slots; log-normal prompts of {PROMPT.low} to "
        f"{PROMPT.high} tokens, mean {PROMPT.mean}, and outputs of {OUTPUT.low} to {OUTPUT.high}, mean {OUTPUT.mean}"
    )
    if options.plot:
        plot_engine(decodes, flows, options.plot)
        card.notes.append(f"plot: {options.plot}")
    return card


def _run_stress(
    bench: EngineBench, options: EngineProofOptions, report_progress: Callable[[str], None]
) -> dict[str, BatchStress]:
    report_progress(f"a crowd of {options.crowd:,} through the batch")
    batch = simulated_engine(blocks=KV_BLOCKS, slots=SLOTS, context=128)
    crowds = {"batch": BatchStress(batch, options.crowd, TOKEN_IDS, options.seed)}
    crowds["batch"].run()
    if options.real_crowd:
        report_progress(f"a crowd of {options.real_crowd} through the real engine")
        bench.reset([], blocks=KV_BLOCKS)
        crowds["engine"] = BatchStress(bench.timed_engine.engine, options.real_crowd, bench.token_ids, options.seed)
        crowds["engine"].run()
    return crowds


def _void_reason(stress: BatchStress) -> str:
    unseen = [name for name in ("preempted", "cached", "cancelled") if not stress.counts[name]]
    return f"nobody of the crowd was {' or '.join(unseen)}: give it more requests with --crowd" if unseen else ""


def decode_lines(decodes: Sequence[DecodeStep]) -> list[CardLine]:
    lines = []
    for each in decodes:
        lines.append(reported(f"decode step at batch {each.batch}", each.step_s * 1e3, "ms"))
        lines.append(reported(f"roofline at batch {each.batch}", each.roofline_s * 1e3, "ms"))
        lines.append(
            reported(f"of the roofline reached at batch {each.batch}", 100 * each.roofline_s / each.step_s, "%")
        )
        if each.batch == 8:
            lines.append(
                at_most(
                    "time outside the forward at batch 8", 100 * each.outside_forward_share, MAX_OVERHEAD_PERCENT, "%"
                )
            )
    return lines


def throughput_lines(curves: Mapping[str, ThroughputCurve]) -> list[CardLine]:
    rate = {name: flow.tokens_per_s for name, flow in curves.items()}
    steps = {name: len(flow.seconds) for name, flow in curves.items()}
    return [
        *(reported(f"mixed lengths, {name} batches", each, "tokens/s") for name, each in rate.items()),
        at_least("continuous over static batches that pad", rate["continuous"] / rate["padded"], MIN_SPEEDUP, "x"),
        reported("continuous over static batches that do not", rate["continuous"] / rate["static"], "x"),
        reported("steps of static batches over continuous", steps["static"] / steps["continuous"], "x"),
    ]


def text_lines(comparison: TextComparison) -> list[CardLine]:
    return [
        reported("greedy tokens compared", comparison.greedy),
        exactly("of them other than by full recompute", comparison.greedy_different, 0),
        reported("drawn tokens compared", comparison.sampled),
        exactly("of them other in a crowd than alone", comparison.sampled_different, 0),
    ]


def long_prompt_lines(result: LongPromptResult) -> list[CardLine]:
    least = -(-LONG_PROMPT_TOKENS // (TOKEN_BUDGET - DECODING_SEQS))
    return [
        at_most(f"steps of a {LONG_PROMPT_TOKENS:,} token prompt beside {DECODING_SEQS} decodes", result.steps, least),
        exactly("steps that a decode missed meanwhile", result.missed_decodes, 0),
        exactly("steps above the token budget", result.steps_over_budget, 0),
    ]


def stress_lines(name: str, stress: BatchStress) -> list[CardLine]:
    counts = stress.counts
    return [
        reported(f"{name}'s crowd: requests", stress.requests),
        reported(f"{name}'s crowd: preempted", counts["preempted"]),
        reported(f"{name}'s crowd: cancelled", counts["cancelled"]),
        exactly(f"{name}'s crowd: tokens or requests lost", stress.errors, 0),
        exactly(f"{name}'s crowd: texts changed", counts["changed"], 0),
        exactly(f"{name}'s crowd: blocks not back", counts["blocks not back"], 0),
    ]
