"""A real edge while the workers of a model are replaced by workers of another version."""

from collections import Counter

from edge_calls import read_answer, read_tokens, rejected_call, wait_at_rest
from edge_mesh import KEY, TOKENIZER, FakeWorker, edge_mesh, token_at
from penstock.chassis.errors import FailedPrecondition
from penstock.mesh.v1.worker_pb2 import ExecuteResponse, RunFailed
from penstock.v1.inference_pb2 import ListModelsRequest, Resume

BOS_ID = 1
HI = TOKENIZER.encode("hi").ids


def old_and_new(old=1, new=1):
    """Workers of two versions. The new tokenizer puts an id before the text."""
    return [
        *(FakeWorker(f"old-{number}", digest="old") for number in range(old)),
        *(FakeWorker(f"new-{number}", digest="new", bos_token_id=BOS_ID) for number in range(new)),
    ]


def replace_workers(mesh, digest):
    """Keep the workers of one version only."""
    mesh.queue.workers[:] = [each for each in mesh.workers if each.digest == digest]
    mesh.queue.send_catalog()


async def test_each_request_runs_on_the_version_that_tokenized_it_in_proportion_to_the_workers():
    async with edge_mesh(fakes=old_and_new(3, 1)) as mesh:
        answers = [await read_answer(mesh.generate(max_output_tokens=1)) for _ in range(8)]
        assert Counter(accepted.model_version for accepted, *_ in answers) == {"old": 6, "new": 2}
        for worker in mesh.workers:
            for start in worker.starts:
                assert start.model == f"tiny@{worker.digest}"
                assert list(start.token_ids) == (HI if worker.digest == "old" else [BOS_ID, *HI])


async def test_versions_are_listed_with_their_workers():
    async with edge_mesh(fakes=old_and_new(1, 2)) as mesh:
        [model] = (await mesh.inference.ListModels(ListModelsRequest(), metadata=KEY)).models
        assert (model.name, model.workers_hint) == ("tiny", 3)
        assert [(each.version, each.workers_hint) for each in model.versions] == [("new", 2), ("old", 1)]


async def test_a_queued_request_is_tokenized_again_when_its_version_is_replaced():
    async with edge_mesh(fakes=old_and_new()) as mesh:
        replace_workers(mesh, "old")
        mesh.queue.holds_tickets = True
        call = mesh.generate(max_output_tokens=2)
        ticket = await mesh.queue.held_tickets.get()
        while ticket.model != "tiny@old":  # the edge had not received the catalog yet
            call.cancel()
            call = mesh.generate(max_output_tokens=2)
            ticket = await mesh.queue.held_tickets.get()
        mesh.queue.holds_tickets = False
        replace_workers(mesh, "new")
        accepted, _, ids, finished = await read_answer(call)
        assert (accepted.model_version, accepted.prompt_tokens) == ("new", len(HI) + 1)
        assert ids == [token_at(0), token_at(1)]
        assert finished.usage.prompt_tokens == len(HI) + 1
        last = mesh.queue.tickets[-1]
        assert (last.ticket_id, last.model, last.attempt) == (ticket.ticket_id, "tiny@new", 2)
        await wait_at_rest(mesh)


async def test_a_queued_request_moves_to_a_version_that_appears_after_its_own_is_gone():
    async with edge_mesh(fakes=old_and_new()) as mesh:
        replace_workers(mesh, "old")
        mesh.queue.holds_tickets = True
        calls = [mesh.generate(max_output_tokens=2) for _ in range(2)]
        for _ in calls:
            await mesh.queue.held_tickets.get()
        mesh.queue.holds_tickets = False
        replace_workers(mesh, "none")
        replace_workers(mesh, "new")
        moved = await read_answer(calls[1])
        assert moved[0].model_version == "new"
        calls[0].cancel()


async def test_a_resumed_answer_stays_on_its_version_also_if_another_has_more_workers():
    async with edge_mesh(fakes=old_and_new(1, 3)) as mesh:
        for _ in range(4):
            resume = Resume(token_ids=[token_at(0)], model_version="old")
            accepted, *_ = await read_answer(mesh.generate(max_output_tokens=3, resume=resume))
            assert accepted.model_version == "old"
        assert len(mesh.workers[0].starts) == 4


async def test_a_resumed_answer_whose_version_is_gone_ends_with_an_error_that_says_so():
    async with edge_mesh(fakes=old_and_new(0, 1), model_wait_timeout=0.01) as mesh:
        resume = Resume(token_ids=[token_at(0)], model_version="old")
        error = await rejected_call(mesh.generate(max_output_tokens=3, resume=resume))
        assert (error.reason, error.retry_after) == ("MODEL_REPLACED", 0.0)
        resume = Resume(model_version="old")  # without tokens, any version will do
        accepted, *_ = await read_answer(mesh.generate(max_output_tokens=3, resume=resume))
        assert accepted.model_version == "new"


async def test_an_interrupted_answer_resumes_on_a_worker_of_its_version():
    async with edge_mesh(fakes=old_and_new(2, 2)) as mesh:
        replace_workers(mesh, "old")
        mesh.queue.workers[:] = mesh.workers
        first, second = mesh.workers[:2]
        first.pause_at_index = 2
        resume = Resume(token_ids=[token_at(0)], model_version="old")
        call = mesh.generate(max_output_tokens=5, resume=resume)
        ids = await read_tokens(call, 1)
        first.cut_streams()
        *_, rest, _ = await read_answer(call)
        assert [*ids, *rest] == [token_at(index) for index in range(1, 5)]
        assert [start.model for start in second.starts] == ["tiny@old"]
        assert not any(worker.starts for worker in mesh.workers[2:])


async def test_a_run_that_a_worker_of_another_model_rejects_is_repeated():
    async with edge_mesh() as mesh:
        [worker] = mesh.workers
        accept, rejected = worker.on_frame, []

        def reject_first(peer, frame):
            if frame.WhichOneof("frame") == "start" and not rejected:
                rejected.append(frame.start)
                failure = FailedPrecondition("another model", reason="MODEL_MISMATCH").failure()
                failed = RunFailed(handle=frame.start.handle, failure=failure, never_ran=True)
                peer.send(ExecuteResponse(failed=failed))
                return
            accept(peer, frame)

        worker.on_frame = reject_first
        *_, finished = await read_answer(mesh.generate(max_output_tokens=2))
        assert finished.usage.output_tokens == 2
        assert [ticket.attempt for ticket in mesh.queue.tickets] == [1, 2]
