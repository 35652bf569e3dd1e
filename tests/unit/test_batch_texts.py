"""What `penstock batch` shows of a batch in progress, and of one that has ended."""

import pytest

from penstock.cli.batches.texts import end_text, has_ended, progress_text, time_text
from penstock.v1 import batches_pb2 as pb


def batch(status=pb.BATCH_STATUS_IN_PROGRESS, *, total=200, completed=0, failed=0, **fields):
    counts = pb.LineCounts(total=total, completed=completed, failed=failed)
    return pb.Batch(id="batch_1", status=status, lines=counts, **fields)


def test_progress_is_a_bar_with_counts_and_the_expected_end():
    found = batch(completed=90, failed=10)
    found.expected_end_time.FromSeconds(1_100)
    expected = "██████████░░░░░░░░░░ in progress: 100 of 200 lines, 10 failed, ends in 100 s"
    assert progress_text(found, 1_000.0) == expected.replace("100 s", "2 min")
    assert progress_text(found, 1_050.0).endswith("ends in 50 s")


def test_a_bar_is_full_with_the_last_line_alone():
    assert progress_text(batch(completed=199), 0.0).count("█") == 19
    assert progress_text(batch(completed=200), 0.0).count("░") == 0


def test_a_batch_whose_file_is_read_has_no_bar():
    assert progress_text(batch(pb.BATCH_STATUS_VALIDATING, total=0), 0.0).startswith("validating: ")


def test_an_end_says_what_failed_and_how_to_fetch_the_files():
    done = batch(pb.BATCH_STATUS_COMPLETED, completed=190, failed=10, output_file_id="file-1")
    assert end_text(done) == (
        "batch_1 completed: 190 of 200 lines answered, 10 failed, 0 output tokens; penstock batch fetch batch_1"
    )
    failed = batch(pb.BATCH_STATUS_FAILED, total=0)
    failed.failure.reason, failed.failure.message = "FILE_EMPTY", "the file has no line"
    assert end_text(failed) == "batch_1 failed: FILE_EMPTY: the file has no line"


@pytest.mark.parametrize("status", pb.BatchStatus.values())
def test_four_states_are_final(status):
    assert has_ended(batch(status)) is (pb.BatchStatus.Name(status).split("_")[-1] in FINAL)


FINAL = {"COMPLETED", "FAILED", "EXPIRED", "CANCELLED"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5.0, "0 s"), (45.4, "45 s"), (90.0, "2 min"), (5_340.0, "89 min"), (12_600.0, "3.5 h")]
)
def test_times_are_rough(seconds, text):
    assert time_text(seconds) == text
