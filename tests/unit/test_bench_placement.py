"""`tools/bench_placement`, and a bound of the work of a search among many workers."""

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from penstock.scheduler.fleet import tournament_tree
from penstock.scheduler.fleet.tournament_tree import TournamentTree

TOOL = Path(__file__).parents[2] / "tools" / "bench_placement"


def test_the_table_has_a_row_for_each_fleet_with_a_figure_for_each_event():
    run = subprocess.run([sys.executable, TOOL, "--workers", "1,3"], capture_output=True, text=True, check=True)
    head, *rows = run.stdout.splitlines()
    assert "placement" in head
    assert [row.split()[0] for row in rows] == ["1", "3"]
    for row in rows:
        figures = [float(each) for each in row.split()[1:]]
        assert len(figures) == 6
        assert all(figure > 0 for figure in figures)


@pytest.mark.parametrize("workers", [16, 256, 4_096])
def test_a_search_pushes_one_node_per_level_for_each_worker_that_it_finds(monkeypatch, workers):
    pushed = []

    def counting_push(heap, item):
        pushed.append(item)
        push(heap, item)

    push = tournament_tree.heappush
    monkeypatch.setattr(tournament_tree, "heappush", counting_push)
    tree, loads = TournamentTree(), random.Random(workers)
    for number in range(workers):
        tree.put(f"w{number}", loads.random(), 100)
    found = list(islice(tree.search(1), 5))
    assert len(found) == 5
    assert len(pushed) <= 5 * workers.bit_length()
