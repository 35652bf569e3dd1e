"""The order of prompts at a worker, by class and by whether the ticket is express."""

from penstock.mesh.prefill_rank import BATCH_RANK, DEFAULT_RANK, EXPRESS_RANK, prefill_rank
from penstock.v1.inference_pb2 import Priority


def test_express_prompts_are_first_and_batch_prompts_last():
    assert EXPRESS_RANK < DEFAULT_RANK < BATCH_RANK
    assert [prefill_rank(each, is_express=True) for each in Priority.values()] == [0, 0, 0, BATCH_RANK]
    assert [prefill_rank(each, is_express=False) for each in Priority.values()] == [1, 1, 1, BATCH_RANK]
