"""Assigns each answer to the version of the model that gave it. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.bench.transcript import TokenTranscript


class AnswersByVersion(NamedTuple):
    old: list[TokenTranscript]
    new: list[TokenTranscript]


def split_by_version(
    transcripts: Iterable[TokenTranscript], old: Sequence[TokenTranscript], new: Sequence[TokenTranscript]
) -> AnswersByVersion:
    """Assign each transcript to the version whose answer shares the longer prefix with it, the old one if both do.

    `old` and `new` hold the answers to `transcript.number`. An answer of two versions is assigned to the first of them,
    and the tokens of the other one count as changed when it is compared with its answer.
    """
    answers = AnswersByVersion([], [])
    for each in transcripts:
        shared_old, shared_new = (_shared_prefix(each, version[each.number]) for version in (old, new))
        (answers.new if shared_new > shared_old else answers.old).append(each)
    return answers


def _shared_prefix(transcript: TokenTranscript, answer: TokenTranscript) -> int:
    """Return the number of tokens before the first that differs."""
    pairs = zip(transcript.token_ids, answer.token_ids, strict=False)
    return next((index for index, (got, expected) in enumerate(pairs) if got != expected), len(transcript.token_ids))
