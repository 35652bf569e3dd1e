"""The benchmark of a scheduler's process, at a small size."""

from process_bench.scheduler_bench import measure, print_figures

WORKERS, SLOTS = 6, 4


async def test_the_scheduler_benchmark_attaches_all_workers_once_and_watches_the_loop_of_the_process(capsys):
    found = await measure(WORKERS, SLOTS, 2, settle_s=0.3, measured_s=0.5)
    assert found.streams_opened == WORKERS
    assert found.closed_streams == {}
    assert found.frames_per_s > 0
    for phase in (found.attach, found.settle, found.steady):
        assert phase.callbacks > 0
        assert 0 < phase.longest_callback_s <= phase.cpu_s + 0.02  # /proc counts in steps of 0.01 s
    print_figures(found, WORKERS)
    assert f"all {WORKERS} workers" in capsys.readouterr().out
