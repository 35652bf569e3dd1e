"""What a long proof says of itself where no terminal shows it."""

import io

from rich.console import Console

from penstock.bench.progress import MIN_PRINT_INTERVAL_S, progress_reporter, rate_limited


def test_in_a_file_there_is_a_line_at_once_and_then_one_now_and_then():
    said, now = [], [100.0]
    say = rate_limited(said.append, lambda: now[0])
    for tenths in range(round(2.5 * MIN_PRINT_INTERVAL_S) * 10):
        now[0] = 100.0 + tenths / 10
        say(f"{tenths / 10:g} s")
    assert said == ["0 s", f"{MIN_PRINT_INTERVAL_S:g} s", f"{2 * MIN_PRINT_INTERVAL_S:g} s"]


def test_a_pipe_gets_the_text_as_it_is():
    console = Console(file=io.StringIO(), soft_wrap=True)
    with progress_reporter(console) as say:
        say("[3] of 4 crowds")
    assert console.file.getvalue() == "[3] of 4 crowds\n"
