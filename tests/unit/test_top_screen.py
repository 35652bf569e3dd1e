"""The live screen of `penstock top`: what fits 80x24, and what each key does."""

import pytest
from rich.cells import cell_len

from penstock.cli.top.frame import frame_of
from penstock.cli.top.keys import keys_of
from penstock.cli.top.once import frame_lines
from penstock.cli.top.poll import figures_of
from penstock.cli.top.screen import FOOTER, VIEWS, Screen
from snapshots import process_snapshot, scheduler, shard, worker

WIDTH, HEIGHT = 80, 24
MODEL = "Qwen3-Coder-480B-A35B-Instruct"
DIGEST = "9463667e1a4d1a1e759ad452130dbf65"


def samples(workers):
    rows = [
        worker(
            worker_id=f"penstock-worker-7d9c5b4f6-{number:05}.987456a0",
            running=number % 65,
            slots=64,
            kv_blocks=131_072,
            promised_blocks=65_536,
            prefill_tokens=123_456,
            tokens_per_second=12_345.6,
            model=MODEL,
            card_digest=DIGEST,
            zone="europe-west4-a",
        )
        for number in range(1, workers + 1)
    ]
    edge = process_snapshot(
        "edge-1",
        "edge",
        requests=[
            {
                "request_id": "r1",
                "model": MODEL,
                "tenant_id": "acme",
                "outcome": "stop",
                "end_time": 9.0,
                "total_s": 1.5,
                "stages": [{"tier": "queue", "name": "wait", "start_s": 0.0, "length_s": 1.25}],
            }
        ],
    )
    shards = [shard(f"penstock-queue-{number}.0123abcd", waiting=12_345, shed=6) for number in range(3)]
    return [edge, *shards, scheduler(*rows), process_snapshot("worker-1", "worker")]


def screen_of(workers):
    found = samples(workers)
    return Screen(frame_of(found), figures_of(found))


def press(screen, *keys):
    for key in keys:
        assert screen.on_key(key)


def text_of(screen):
    return "\n".join(line.text for line in screen.lines(WIDTH, HEIGHT))


def head_of(screen):
    return next(line.text for line in screen.lines(WIDTH, HEIGHT)[2:] if line.style == "bold")


def selected_of(screen):
    (line,) = [line.text for line in screen.lines(WIDTH, HEIGHT) if line.style == "reverse"]
    return line.split()[0]


@pytest.mark.parametrize("workers", [1, 200])
@pytest.mark.parametrize("tab", range(1, len(VIEWS) + 1))
def test_each_table_fits_80x24_with_whole_heads(workers, tab):
    screen = screen_of(workers)
    press(screen, str(tab))
    lines = screen.lines(WIDTH, HEIGHT)
    assert len(lines) == HEIGHT
    assert max(cell_len(line.text) for line in lines) <= WIDTH
    assert "…" not in head_of(screen)
    assert all(column.head in head_of(screen) for column in screen.top.view.columns if column.rank == 0)
    assert lines[-1].text == FOOTER


@pytest.mark.parametrize("workers", [1, 200])
def test_one_frame_of_text_fits_80_columns(workers):
    lines = frame_lines(frame_of(samples(workers)), WIDTH)
    assert max(map(cell_len, lines)) <= WIDTH
    assert all(view.columns[0].head in "\n".join(lines) for view in VIEWS.values())


def test_the_most_telling_columns_of_shards_and_workers_fit_80_columns():
    screen = screen_of(200)
    press(screen, "2")
    assert {"shard", "waiting", "running", "leases/s", "p95"} <= set(head_of(screen).split())
    press(screen, "4")
    assert {"worker", "batch", "running", "slots", "KV", "prefill", "tokens/s"} <= set(head_of(screen).split())
    assert "12,346" in text_of(screen)
    assert "50%" in text_of(screen)


def test_workers_that_differ_at_the_end_of_their_names_are_told_apart():
    screen = screen_of(15)
    press(screen, "4")
    names = [line.text.split()[0] for line in screen.lines(WIDTH, HEIGHT)[4:19]]
    assert len(set(names)) == 15


def test_keys_move_the_selection_and_scroll():
    screen = screen_of(200)
    press(screen, "4")
    first = selected_of(screen)
    press(screen, "down", "j", "up")
    second = selected_of(screen)
    assert second != first
    press(screen, "end")
    text_of(screen)
    assert screen.top.index == 199
    press(screen, "pageup")
    assert screen.top.index == 199 - (HEIGHT - 5)
    press(screen, "home", "up")
    assert selected_of(screen) == first


def test_the_selected_row_stays_selected_when_the_order_of_rows_changes():
    screen = screen_of(3)
    press(screen, "4", "down")
    before = screen.top.selected
    text_of(screen)
    frame = dict(screen.frame, workers=list(screen.frame["workers"]))
    for row in frame["workers"]:
        row["batch_fill"] = 1.0 - row["batch_fill"]
    screen.update(frame, screen.figures)
    text_of(screen)
    assert screen.top.selected == before


def test_a_column_orders_the_rows_both_ways():
    screen = screen_of(20)
    press(screen, "4", *["s"] * 7)  # worker, scheduler, zone, model, version, batch, running
    assert "running▼" in head_of(screen)
    rows = screen.top.rows(screen.frame)
    assert [row["running"] for row in rows] == list(range(20, 0, -1))
    press(screen, "r")
    assert "running▲" in head_of(screen)
    assert [row["running"] for row in screen.top.rows(screen.frame)] == list(range(1, 21))
    press(screen, *["S"] * 7)
    assert not screen.top.sort_key


def test_rows_without_a_value_are_last_in_either_order():
    screen = screen_of(1)
    press(screen, "7")
    screen.frame["processes"].append({"process": "gone", "address": "gone:1", "tier": "", "state": "CONNECTION_LOST"})
    screen.top.sort_key = "cpu_share"
    for key in ("r", "r"):
        press(screen, key)
        assert screen.top.rows(screen.frame)[-1]["process"] == "gone"


def test_enter_opens_the_parts_of_a_row_and_escape_closes_them():
    screen = screen_of(5)
    press(screen, "1", "enter")  # the processes of the edge tier
    assert "processes of edge: 1 of 1" in text_of(screen)
    press(screen, "enter")  # one process, with its figures
    assert "figure cpu_seconds" in text_of(screen)
    press(screen, "escape", "escape")
    assert screen.top is screen.tabs["tiers"]
    press(screen, "3", "enter", "down", "enter")  # a model, its workers, one of these
    assert "tokens_per_second" in text_of(screen)
    assert "europe-west4-a" in text_of(screen)


def test_i_opens_the_values_of_a_row_that_has_parts():
    screen = screen_of(1)
    press(screen, "2", "i")
    assert "late_s_p5" in text_of(screen)
    assert "figure rss_bytes" in text_of(screen)
    press(screen, "i", "enter", "s", "r", "escape")
    assert screen.top is screen.tabs["shards"]


def test_a_request_is_opened_with_its_stages():
    screen = screen_of(1)
    press(screen, "8", "enter")
    assert "queue wait" in text_of(screen)
    assert "1,250.0 ms" in text_of(screen)


def test_a_row_that_has_gone_is_reported():
    screen = screen_of(1)
    press(screen, "4", "enter")
    screen.update(dict(screen.frame, workers=[]), {})
    assert "no longer there" in text_of(screen)
    press(screen, "escape", "enter", "down")
    assert "0 of 0" in text_of(screen)


def test_a_paused_screen_keeps_its_frame():
    screen = screen_of(1)
    press(screen, " ")
    screen.update(dict(screen.frame, workers=[]), {})
    assert len(screen.frame["workers"]) == 1
    assert "paused" in text_of(screen)
    press(screen, " ")
    screen.update(dict(screen.frame, workers=[]), {})
    assert not screen.frame["workers"]


def test_q_ends_and_unknown_keys_do_nothing():
    screen = screen_of(1)
    before = text_of(screen)
    press(screen, "x", "0", "²")
    assert text_of(screen) == before
    assert not screen.on_key("q")


def test_names_with_control_characters_are_harmless():
    found = [scheduler(worker("w\x1b[2J", model="[/bold]"))]
    screen = Screen(frame_of(found), figures_of(found))
    press(screen, "4")
    assert "\x1b" not in text_of(screen)
    press(screen, "3")
    assert "[/bold]" in text_of(screen)


def test_characters_of_a_terminal_become_names_of_keys():
    assert keys_of("q\x1b[A\x1bOB\x1b[6~\x1b\t\r\x1b[Z\x01é") == [
        *("q", "up", "down", "pagedown", "escape", "tab", "enter", "backtab", "é"),
    ]
    assert keys_of("\x1b[15~") == []
