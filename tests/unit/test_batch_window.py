"""The window of a batch runner: lines that wait in the mesh follow the rate at which lines start."""

from penstock.batch.window.window import MAX_IN_MESH, MAX_WAITING, MIN_WAITING, TARGET_WAIT_S, LineWindow


def started(window, rate, seconds):
    """Let lines start at a steady rate. Return the time."""
    now = 0.0
    for step in range(int(rate * seconds)):
        now = step / rate
        window.on_sent()
        window.on_running(now)
        window.on_ended(was_running=True)
    return now


def test_a_mesh_without_starts_is_tried_with_a_few_lines():
    window = LineWindow()
    assert window.room(0.0) == MIN_WAITING
    for _ in range(MIN_WAITING):
        window.on_sent()
    assert window.room(1e6) == 0


def test_as_many_lines_wait_as_start_within_the_target():
    window = LineWindow()
    now = started(window, rate=100.0, seconds=60.0)
    assert 0.9 * 100.0 * TARGET_WAIT_S <= window.room(now) <= 1.1 * 100.0 * TARGET_WAIT_S


def test_a_window_has_its_bounds():
    window = LineWindow()
    now = started(window, rate=5_000.0, seconds=20.0)
    assert window.room(now) == MAX_WAITING
    window.running = MAX_IN_MESH - 1
    assert window.room(now) == 1


def test_a_shed_pauses_the_window_and_halves_it_until_it_has_grown_again():
    window = LineWindow()
    now = started(window, rate=100.0, seconds=60.0)
    full = window.room(now)
    for _ in range(5):  # of the same moment: one shed
        window.on_shed(1.0, now)
    assert window.room(now + 0.9) == 0
    window._updated_at = now + 1.0  # as if lines had started until then
    assert 0.5 * full <= window.room(now + 1.0) <= 0.7 * full
    window._updated_at = now + 10.0
    assert window.room(now + 10.0) == full
