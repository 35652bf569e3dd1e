"""Conversions between protobuf messages and the core's values. Holds no policy and cannot fail."""

import math
import zlib
from collections.abc import Iterable

from penstock.chassis.durations import MAX_NANOS, NANOS_PER_S, set_seconds
from penstock.chassis.errors import PenstockError
from penstock.mesh.forms import form_from
from penstock.mesh.prefill_rank import prefill_rank
from penstock.mesh.v1 import scheduler_pb2
from penstock.mesh.v1 import worker_pb2 as pb
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.ticket_pb2 import PoisonReport as PoisonReportMessage
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Sampling
from penstock.worker.engine.interface import Capacity, FinishReason, SamplingParams, SequenceFinished, SequenceSpec
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.quarantine.poison_list import PoisonReport
from penstock.worker.runs.effects import LeasesReleased, RunEnded, StepTokens
from penstock.worker.runs.leases import LeaseGrant
from penstock.worker.runs.run import LeaseProgress, Run, RunTimes
from penstock.worker.scheduler_session.load_report import LoadReport
from penstock.worker.scheduler_session.prefix_cache_delta import PrefixCacheDelta
from penstock.worker.scheduler_session.progress import ProgressReport

_REASONS = {FinishReason.STOP: FINISH_REASON_STOP, FinishReason.LENGTH: FINISH_REASON_LENGTH}


def run_from(start: pb.Start, *, stream: int, seq_id: int, now: float) -> Run:
    spec = SequenceSpec(
        seq_id=seq_id,
        token_ids=list(start.token_ids),
        emitted=start.emitted,
        max_output_tokens=start.max_output_tokens,
        stop_ids=frozenset(start.stop_token_ids),
        ignore_eos=start.ignore_eos,
        sampling=sampling_from(start.sampling),
        seed=start.sampling.seed,
        cache_salt=start.cache_salt,
        constraint=form_from(start.form),
        embeds=start.embeds,
    )
    return Run(
        stream=stream,
        handle=start.handle,
        lease_id=start.lease_id,
        ticket_id=start.ticket_id,
        spec=spec,
        arrived_at=now,
        model=start.model,
        deadline=now + min(start.time_left_nanos, MAX_NANOS) / NANOS_PER_S if start.time_left_nanos else math.inf,
        traceparent=start.traceparent,
        fingerprint=start.fingerprint,
        request_id=start.request_id,
    )


def sampling_from(sampling: Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature if sampling.HasField("temperature") else 1.0,
        top_k=sampling.top_k,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty or 1.0,
        logprobs=sampling.logprobs,
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
        top_logprobs=sampling.top_logprobs,
    )


def step_frame(tokens: StepTokens) -> pb.ExecuteResponse:
    step = pb.Step(handles=tokens.handles, token_ids=tokens.token_ids, indexes=tokens.indexes, step=tokens.step)
    if tokens.has_logprobs:
        step.logprobs.extend(tokens.logprobs)
    if tokens.top_token_ids:
        step.top_token_ids.extend(tokens.top_token_ids)
        step.top_logprobs.extend(tokens.top_logprobs)
    return pb.ExecuteResponse(step=step)


def ended_frame(ended: RunEnded) -> pb.ExecuteResponse:
    outcome, handle = ended.outcome, ended.run.handle
    if isinstance(outcome, PenstockError):
        never_ran = not ended.run.has_reached_engine
        return pb.ExecuteResponse(failed=pb.RunFailed(handle=handle, failure=outcome.failure(), never_ran=never_ran))
    times = _times_message(ended.run.times(ended.at))
    if isinstance(outcome, SequenceFinished):
        finished = pb.RunFinished(
            handle=handle,
            reason=_REASONS[outcome.reason],
            output_tokens=outcome.output_tokens,
            cached_prompt_tokens=outcome.cached_tokens,
            times=times,
        )
        if outcome.embedding:
            finished.embedding.extend(memoryview(outcome.embedding).cast("f"))
        return pb.ExecuteResponse(finished=finished)
    cancelled = pb.RunCancelled(
        handle=handle,
        output_tokens=outcome.output_tokens,
        kv_blocks_freed=outcome.blocks_freed,
        step=ended.step,
        times=times,
    )
    return pb.ExecuteResponse(cancelled=cancelled)


def card_message(card: ModelCard, block_size: int) -> pb.ModelCard:
    message = pb.ModelCard(
        name=card.name,
        digest=card.digest(block_size),
        context_length=card.context_length,
        vocabulary_size=card.vocab_size,
        eos_token_ids=card.eos_ids,
        chat_template=card.chat_template,
        tokenizer_json_zlib=zlib.compress(card.tokenizer_json.encode()),
        block_size=block_size,
        enforces_forms=card.enforces_forms,
        embedding_size=card.embedding_size,
    )
    if card.add_bos and card.bos_id is not None:
        message.bos_token_id = card.bos_id
    return message


def profile_message(
    card: pb.ModelCard, capacity: Capacity, running: Iterable[Run], reports: Iterable[PoisonReport]
) -> scheduler_pb2.Profile:
    block_size = capacity.block_size
    return scheduler_pb2.Profile(
        model=card.name,
        card_digest=card.digest,
        slots=capacity.slots,
        kv_blocks=capacity.blocks,
        block_size=block_size,
        context_length=card.context_length,
        running=[_running_lease(run, block_size) for run in running],
        poison_reports=map(_poison_report, reports),
    )


def unavailable_profile(reports: Iterable[PoisonReport]) -> scheduler_pb2.Profile:
    """Profile of a worker that accepts no work now."""
    return scheduler_pb2.Profile(poison_reports=map(_poison_report, reports))


def poison_update_frame(reports: Iterable[PoisonReport]) -> scheduler_pb2.AttachRequest:
    return scheduler_pb2.AttachRequest(poison_update=scheduler_pb2.PoisonUpdate(reports=map(_poison_report, reports)))


def _poison_report(report: PoisonReport) -> PoisonReportMessage:
    message = PoisonReportMessage(fingerprint=report.fingerprint, is_confirmed=report.is_confirmed)
    set_seconds(message.ttl, report.ttl_s)
    return message


def grant_from(lease: Lease) -> LeaseGrant:
    rank = prefill_rank(lease.priority, is_express=lease.express)
    return LeaseGrant(lease.ticket_id, lease.attempt, lease.queue_id, rank)


def progress_message(report: ProgressReport, steps: int) -> scheduler_pb2.Progress:
    """`steps`: engine steps, as in the load report."""
    return scheduler_pb2.Progress(
        leases=[lease_progress_message(progress, number) for number, progress in report.leases],
        lease_numbers=report.lease_numbers,
        output_tokens=report.output_tokens,
        steps=steps,
    )


def prefix_cache_frame(delta: PrefixCacheDelta) -> scheduler_pb2.AttachRequest:
    update = scheduler_pb2.PrefixCacheUpdate(added=delta.added, removed=delta.removed, is_snapshot=delta.is_snapshot)
    return scheduler_pb2.AttachRequest(prefix_cache_update=update)


def released_frame(released: LeasesReleased, steps: int) -> scheduler_pb2.AttachRequest:
    """`steps`: engine steps, as in the load report."""
    message = scheduler_pb2.Released(
        lease_ids=released.lease_ids, served=map(lease_progress_message, released.progress), steps=steps
    )
    return scheduler_pb2.AttachRequest(released=message)


def report_frame(load: LoadReport) -> scheduler_pb2.AttachRequest:
    return scheduler_pb2.AttachRequest(load_report=report_message(load))


def report_message(load: LoadReport) -> scheduler_pb2.LoadReport:
    report = scheduler_pb2.LoadReport(
        running=load.running,
        free_kv_blocks=load.free_kv_blocks,
        prefill_backlog_tokens=load.prefill_backlog_tokens,
        tokens_per_second=load.tokens_per_second,
        prefill_tokens_per_second=load.prefill_tokens_per_second,
        steps=load.steps,
        seconds_per_prefill_token=load.prefill_token_time,
        max_step_tokens=load.step_tokens,
    )
    if load.step_time is not None:
        set_seconds(report.step_time, load.step_time)
    if load.decode_step_time is not None:
        set_seconds(report.decode_step_time, load.decode_step_time)
    return report


def _running_lease(run: Run, block_size: int) -> scheduler_pb2.RunningLease:
    return scheduler_pb2.RunningLease(
        lease_id=run.lease_id,
        kv_blocks=-(-run.max_total_tokens // block_size),
        ticket_id=run.ticket_id,
        attempt=run.attempt,
        queue_id=run.queue_id,
    )


def lease_progress_message(progress: LeaseProgress, number: int = 0) -> scheduler_pb2.ServedLease:
    message = scheduler_pb2.ServedLease(
        lease_id=progress.lease_id,
        prompt_tokens=progress.prompt_tokens,
        output_tokens=progress.output_tokens,
        number=number,
    )
    if progress.first_token_after_s is not None:
        set_seconds(message.first_token_after, progress.first_token_after_s)
    return message


def _times_message(times: RunTimes) -> pb.RunTimes:
    message = pb.RunTimes()
    set_seconds(message.wait, times.wait_s)
    set_seconds(message.prefill, times.prefill_s)
    set_seconds(message.decode, times.decode_s)
    return message
