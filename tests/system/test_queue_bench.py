"""The benchmark of a shard's process, at a small size."""

from process_bench.queue_bench import measure, print_figures

TICKETS, EDGES = 400, 4


async def test_the_queue_benchmark_takes_all_tickets_back_and_watches_the_loop_of_the_process(capsys):
    found = await measure(TICKETS, EDGES)
    assert found.rejected == 0
    assert found.closed_streams == {}
    assert found.leased >= 1
    assert found.first_lease_s > 0
    assert found.restart.callbacks > 0
    assert 0 < found.restart.longest_callback_s <= found.restart.cpu_s + 0.02  # /proc counts in steps of 0.01 s
    print_figures(found)
    assert "0 rejected" in capsys.readouterr().out
