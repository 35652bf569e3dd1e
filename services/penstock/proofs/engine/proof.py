"""The promises of the engine, measured on the model that workers serve, and their figure."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from penstock.bench.plot import new_figure
from penstock.bench.progress import progress_reporter
from penstock.proofs.card import CardLine, ProofCard, at_least, at_most, exactly, reported
from penstock.proofs.engine.batch import KV_BLOCKS, BatchStress, TextComparison, compare_texts
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
from penstock.proofs.engine.options import EngineProofOptions
from penstock.proofs.engine.throughput import (
    OUTPUT,
    PROMPT,
    DecodeStep,
    ThroughputCurve,
    measure_decode_steps,
    measure_throughput,
)
from penstock.worker.engine.machine.cpu_limits import available_cores


def plot_engine(decode_steps: Sequence[DecodeStep], curves: Mapping[str, ThroughputCurve], path: Path) -> None:
    names = [str(step.batch) for step in decode_steps]
    outside = [step.step_s * step.outside_forward_share * 1e3 for step in decode_steps]
    forward = [step.step_s * 1e3 - more for step, more in zip(decode_steps, outside, strict=True)]
    rooflines = [step.roofline_s * 1e3 for step in decode_steps]
    with new_figure(path, columns=2, height=4.4) as (steps, load):
        steps.bar(names, forward, label="the model's forward", color="tab:blue")
        steps.bar(names, outside, bottom=forward, label="outside it", color="tab:orange")
        steps.plot(names, rooflines, "k_", markersize=38, label="roofline")
        steps.set(title="Decode step", xlabel="sequences", ylabel="ms")
        steps.legend(markerscale=0.4)
        for name, curve in curves.items():
            load.plot(curve.seconds, curve.tokens, label=f"{name}: {curve.tokens_per_s:,.0f} tokens/s")
        load.set(title="Requests of mixed lengths", xlabel="s", ylabel="requested output tokens")


MAX_OVERHEAD_PERCENT = 10.0  # % of a decode step at a batch of 8
MIN_SPEEDUP = 3.0  # times the throughput of static batches


def prove(options: EngineProofOptions, model: str, console: Console) -> ProofCard:
    with progress_reporter(console) as report_progress:
        report_progress(f"loading {model}")
        bench = open_engine_bench(model, available_cores())
        bench.write_kv_memory()
        decodes = measure_decode_steps(bench, report_progress)
        texts = compare_texts(bench, options.seed, report_progress)
        stress = _run_stress(bench, options, report_progress)
        curves = measure_throughput(bench, options.seed, options.requests, report_progress)
    card = ProofCard(proof="engine", void_reason=_void_reason(stress["batch"]))
    card.lines += [
        *decode_lines(decodes),
        *throughput_lines(curves),
        *text_lines(texts),
        *long_prompt_lines(run_long_prompt()),
    ]
    for name, each in stress.items():
        card.lines += stress_lines(name, each)
    card.notes.append(
        f"mixed lengths: {options.requests} requests at once, {SLOTS} slots; log-normal prompts of {PROMPT.low} to "
        f"{PROMPT.high} tokens, mean {PROMPT.mean}, and outputs of {OUTPUT.low} to {OUTPUT.high}, mean {OUTPUT.mean}"
    )
    if options.plot:
        plot_engine(decodes, curves, options.plot)
        card.notes.append(f"plot: {options.plot}")
    return card


def _run_stress(
    bench: EngineBench, options: EngineProofOptions, report_progress: Callable[[str], None]
) -> dict[str, BatchStress]:
    report_progress(f"{options.stress_requests:,} requests through the batch")
    batch = simulated_engine(blocks=KV_BLOCKS, slots=SLOTS, context=128)
    stress = {"batch": BatchStress(batch, options.stress_requests, TOKEN_IDS, options.seed)}
    stress["batch"].run()
    if options.real_stress_requests:
        report_progress(f"{options.real_stress_requests} requests through the real engine")
        bench.reset([], blocks=KV_BLOCKS)
        engine = bench.timed_engine.engine
        stress["engine"] = BatchStress(engine, options.real_stress_requests, bench.token_ids, options.seed)
        stress["engine"].run()
    return stress


def _void_reason(stress: BatchStress) -> str:
    unseen = [name for name in ("preempted", "cached", "cancelled") if not stress.counts[name]]
    return f"no request was {' or '.join(unseen)}: raise --stress-requests" if unseen else ""


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
    rate = {name: curve.tokens_per_s for name, curve in curves.items()}
    steps = {name: len(curve.seconds) for name, curve in curves.items()}
    return [
        *(reported(f"mixed lengths, {name} batches", each, "tokens/s") for name, each in rate.items()),
        at_least("continuous over static batches that pad", rate["continuous"] / rate["padded"], MIN_SPEEDUP, "x"),
        reported("continuous over static batches that do not", rate["continuous"] / rate["static"], "x"),
        reported("steps of static batches over continuous", steps["static"] / steps["continuous"], "x"),
    ]


def text_lines(comparison: TextComparison) -> list[CardLine]:
    return [
        reported("greedy tokens compared", comparison.greedy),
        exactly("of them different from a full recompute", comparison.greedy_different, 0),
        reported("sampled tokens compared", comparison.sampled),
        exactly("of them different in a batch with others", comparison.sampled_different, 0),
    ]


def long_prompt_lines(result: LongPromptResult) -> list[CardLine]:
    least = -(-LONG_PROMPT_TOKENS // (TOKEN_BUDGET - DECODING_SEQS))
    return [
        at_most(f"steps of a {LONG_PROMPT_TOKENS:,} token prompt with {DECODING_SEQS} decodes", result.steps, least),
        exactly("steps meanwhile without one of the decodes", result.missed_decodes, 0),
        exactly("steps above the token budget", result.steps_over_budget, 0),
    ]


def stress_lines(name: str, stress: BatchStress) -> list[CardLine]:
    counts = stress.counts
    return [
        reported(f"{name}'s stress: requests", stress.requests),
        reported(f"{name}'s stress: preempted", counts["preempted"]),
        reported(f"{name}'s stress: cancelled", counts["cancelled"]),
        exactly(f"{name}'s stress: tokens or requests lost", stress.errors, 0),
        exactly(f"{name}'s stress: texts changed", counts["changed"], 0),
        exactly(f"{name}'s stress: blocks not freed", counts["blocks not freed"], 0),
    ]
