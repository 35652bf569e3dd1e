"""Progress of a long command whose output is not a terminal."""

import io

from rich.console import Console

from penstock.bench.progress import MIN_PRINT_INTERVAL_S, progress_reporter, rate_limited


def test_a_file_receives_a_line_at_once_and_then_one_per_interval():
    lines, now = [], [100.0]
    report_progress = rate_limited(lines.append, lambda: now[0])
    for tenths in range(round(2.5 * MIN_PRINT_INTERVAL_S) * 10):
        now[0] = 100.0 + tenths / 10
        report_progress(f"{tenths / 10:g} s")
    assert lines == ["0 s", f"{MIN_PRINT_INTERVAL_S:g} s", f"{2 * MIN_PRINT_INTERVAL_S:g} s"]


def test_a_pipe_gets_the_text_without_markup():
    console = Console(file=io.StringIO(), soft_wrap=True)
    with progress_reporter(console) as report_progress:
        report_progress("[3] of 4 rounds")
    assert console.file.getvalue() == "[3] of 4 rounds\n"
