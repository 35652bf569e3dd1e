"""No frame of queue and scheduler can carry a prompt or a token."""

from google.protobuf.descriptor import FieldDescriptor

from penstock.mesh.v1 import queue_pb2, scheduler_pb2, worker_pb2

# All fields of their frames for text or lists of numbers, each of which is known to carry neither.
ALLOWED_FIELDS = {
    "added",
    "address",
    "attempt",
    "avoid_workers",
    "busiest_tenant_id",
    "card_digest",
    "description",
    "expected_worker",
    "field",
    "instance_id",
    "key",
    "lease_id",
    "lease_ids",
    "lease_numbers",
    "message",
    "model",
    "output_tokens",  # a count per lease or ticket
    "prefix_hashes",
    "queue_id",
    "reason",
    "release",
    "removed",
    "subject",
    "tenant_id",
    "ticket_id",
    "ticket_ids",
    "ticket_numbers",
    "tier",
    "traceparent",
    "value",
    "worker_address",
    "worker_id",
    "zone",
}


def frames_of(file, service):
    methods = file.DESCRIPTOR.services_by_name[service].methods
    return [each for method in methods for each in (method.input_type, method.output_type)]


def content_capable_fields(message, seen):
    """Return the names of the fields below `message` that can hold a text or many numbers."""
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        if field.message_type:
            yield from content_capable_fields(field.message_type, seen)
        elif field.is_repeated or field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield field.name


def content_capable_fields_of(frames):
    seen = set()
    return {name for frame in frames for name in content_capable_fields(frame, seen)}


def test_no_frame_of_queue_or_scheduler_can_carry_a_prompt_or_a_token():
    frames = [*frames_of(queue_pb2, "QueueService"), *frames_of(scheduler_pb2, "SchedulerService")]
    assert content_capable_fields_of(frames) <= ALLOWED_FIELDS


def test_the_same_check_finds_prompts_and_tokens_in_worker_frames():
    assert {"token_ids"} <= content_capable_fields_of(frames_of(worker_pb2, "WorkerService")) - ALLOWED_FIELDS
