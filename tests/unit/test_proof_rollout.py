"""The rollout proof judges each answer by the weights that began it."""

import math

import pytest

from paths import STORIES
from penstock.bench.transcript import TokenTranscript
from penstock.chassis.config import ConfigError
from penstock.local_mesh.plan import DEFAULT_MODEL
from penstock.proofs.checks.ledger import LedgerCharge
from penstock.proofs.checks.model_versions import split_by_version
from penstock.proofs.live.rollout import RolloutAnswers, rollout_charge_lines, version_lines
from penstock.proofs.testbed.changed_weights import copy_with_other_weights
from penstock.worker.engine.loaders import load_card
from penstock.worker.engine.loaders.weights_digest import weights_digest
from tiny_model import write_tiny_model

OLD_IDS, NEW_IDS = [1, 2, 3, 4], [1, 7, 8, 9]


def answer(token_ids, request_id="r", **fields):
    known = {"finish_reason": "LENGTH", "outcome": "ok", "ended_at": 5.0} | fields
    return TokenTranscript(
        number=0, request_id=request_id, token_ids=token_ids, indexes=list(range(len(token_ids))), **known
    )


def replaced(token_ids, ended_at, request_id="gone"):
    fields = {"finish_reason": "", "outcome": "MODEL_REPLACED", "failure_text": "ABORTED / MODEL_REPLACED: gone"}
    return answer(token_ids, request_id, ended_at=ended_at, **fields)


OLD, NEW = [answer(OLD_IDS, "old")], [answer(NEW_IDS, "new")]


def lines_of(*transcripts, old_gone_at=math.inf):
    complete = answer(OLD_IDS, "complete")
    lines = version_lines(RolloutAnswers(OLD, NEW, [complete, *transcripts], old_gone_at))
    return {line.figure: line for line in lines}


def missed(lines):
    return [line.figure for line in lines.values() if not line.is_met]


def test_an_answer_is_assigned_to_the_version_with_the_longer_common_prefix():
    first, second, empty = answer(OLD_IDS), answer(NEW_IDS), answer([])
    assert split_by_version([first, second, empty], OLD, NEW) == ([first, empty], [second])


def test_complete_answers_of_both_versions_meet_every_goal():
    lines = lines_of(answer(OLD_IDS, "a"), answer(NEW_IDS, "b"))
    assert not missed(lines)
    assert lines["answers of the old weights"].measured == 2
    assert lines["answers of the new weights"].measured == 1


def test_an_answer_that_goes_on_with_other_weights_is_found():
    lines = lines_of(answer([1, 2, 8, 9]))
    assert missed(lines) == ["tokens changed", "transcripts identical"]
    assert lines["tokens changed"].measured == 2


def test_an_answer_may_end_only_after_the_last_old_worker_began_to_drain():
    assert missed(lines_of(replaced([1, 2], ended_at=5.0), old_gone_at=6.0)) == [
        "client-visible failures",
        "transcripts identical",
    ]
    assert not missed(lines_of(replaced([1, 2], ended_at=7.0), old_gone_at=6.0))
    assert missed(lines_of(replaced([1, 2, 8], ended_at=7.0), old_gone_at=6.0)) == [
        "of their tokens, of other weights than the first"
    ]


@pytest.mark.parametrize(("charged", "figure"), [(2, None), (0, None), (3, "ended by the update")])
def test_an_answer_that_the_update_ended_is_charged_no_more_than_its_client_saw(charged, figure):
    answers = RolloutAnswers(OLD, NEW, [replaced([1, 2], ended_at=7.0)], 6.0)
    tickets = {"t-old": "old", "t-new": "new", "t-gone": "gone"}
    rows = [LedgerCharge(ticket, 3, 4, "done") for ticket in ("t-old", "t-new")]
    rows.append(LedgerCharge("t-gone", 3, charged, "failed"))
    found = [line.figure for line in rollout_charge_lines(answers, rows, tickets) if not line.is_met]
    assert found == ([f"{figure}: tokens charged beyond those seen"] if figure else [])


@pytest.mark.parametrize("kind", ["folder", "bin"])
def test_the_copy_of_a_model_has_its_card_and_other_weights(tmp_path, kind):
    source = write_tiny_model(tmp_path / "tiny") if kind == "folder" else STORIES / "stories260K.bin"
    folder = tmp_path / "copy"
    folder.mkdir()
    copy = copy_with_other_weights(str(source), "torch", folder)
    assert load_card(copy) == load_card(source)
    assert weights_digest(copy) != weights_digest(source)


def test_the_weights_of_a_gguf_file_are_changed_for_the_simulated_engine_only(tmp_path):
    with pytest.raises(ConfigError, match=r"Hugging Face folder or a \.bin"):
        copy_with_other_weights(DEFAULT_MODEL, "torch", tmp_path)
    assert load_card(copy_with_other_weights(DEFAULT_MODEL, "sim", tmp_path)).name == DEFAULT_MODEL
