"""The contract: generated code is current, the linter accepts it, changes are compatible, streams are alike."""

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor

from paths import REPO

PROTOS = REPO / "protos"
BUF = Path(sys.executable).with_name("buf")
FRAME_MESSAGES = {"hello": "penstock.v1.Hello", "heartbeat": "penstock.v1.Heartbeat", "end": "penstock.v1.End"}
WORDS_OF_CONTENT = {"text", "content", "prompt", "completion", "template"}
COUNTS = {  # arrays that are parallel to an array of numbers of leases or tickets
    "penstock.mesh.v1.Progress.lease_numbers",
    "penstock.mesh.v1.Progress.output_tokens",
    "penstock.mesh.v1.OutputProgress.ticket_numbers",
    "penstock.mesh.v1.OutputProgress.output_tokens",
}
INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}


def services() -> Iterator[ServiceDescriptor]:
    for proto in sorted(PROTOS.rglob("*.proto")):
        module = ".".join(proto.relative_to(PROTOS).with_suffix("").parts) + "_pb2"
        yield from importlib.import_module(module).DESCRIPTOR.services_by_name.values()


def bidi_methods() -> list[MethodDescriptor]:
    return [each for service in services() for each in service.methods if each.client_streaming]


def reachable(message: Descriptor) -> set[FieldDescriptor]:
    """Every field of `message` and of the messages in it, to any depth."""
    found: dict[str, FieldDescriptor] = {}
    todo = [message]
    while todo:
        for field in todo.pop().fields:
            if field.full_name not in found:
                found[field.full_name] = field
                todo += [field.message_type] if field.message_type else []
    return set(found.values())


def content_fields(service: ServiceDescriptor) -> set[str]:
    """Names of the fields through which a prompt or its tokens could pass."""
    fields = {
        field
        for method in service.methods
        for message in (method.input_type, method.output_type)
        for field in reachable(message)
    }
    return {field.full_name for field in fields if may_carry_content(field)} - COUNTS


def may_carry_content(field: FieldDescriptor) -> bool:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return True
    if field.cpp_type in INTEGERS:
        return field.is_repeated and field.type != FieldDescriptor.TYPE_FIXED64  # hashes are fixed64
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return bool(WORDS_OF_CONTENT & set(field.name.split("_")))
    return False


def buf(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BUF, *arguments], capture_output=True, text=True, check=False)


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", REPO, *arguments], capture_output=True, check=False)


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Path:
    """protos/ as of the newest tag, or else of main, or else of the commit that is checked out."""
    tag = git("describe", "--tags", "--abbrev=0").stdout.decode().strip()
    for revision in filter(None, (tag, "origin/main", "main", "HEAD")):
        archive = git("archive", revision, "protos")
        if archive.returncode == 0:
            folder = tmp_path_factory.mktemp("released")
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            return folder / "protos"
    pytest.fail("no git history to compare the contract with: run the tests in a clone of the repository")


def test_committed_stubs_are_what_the_protos_generate(tmp_path):
    subprocess.run([sys.executable, REPO / "tools" / "gen_protos", tmp_path], check=True)
    generated = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2*")}
    root = REPO / "services"
    committed = {path.relative_to(root): path.read_text() for path in root.rglob("*_pb2*.py*") if path.suffix != ".pyc"}
    assert sorted(generated) == sorted(committed)
    assert [name for name in generated if generated[name] != committed[name]] == [], "run tools/gen_protos"


def test_the_contract_lints():
    lint = buf("lint", str(PROTOS))
    assert lint.returncode == 0, lint.stdout + lint.stderr


def test_the_contract_is_compatible_with_the_released_one(released):
    breaking = buf("breaking", str(PROTOS), "--against", str(released))
    assert breaking.returncode == 0, breaking.stdout + breaking.stderr


def test_a_changed_field_type_is_detected(released, tmp_path):
    changed = shutil.copytree(PROTOS, tmp_path / "protos")
    stream = changed / "penstock" / "v1" / "stream.proto"
    stream.write_text(stream.read_text().replace("uint32 protocol = 1", "string protocol = 1"))
    breaking = buf("breaking", str(changed), "--against", str(released))
    assert "protocol" in breaking.stdout


# Streams of one call each: contents of files, and lines of a program, which opens another one if it hears nothing.
CALLS = {
    "penstock.mesh.v1.BatchService.UploadFile",
    "penstock.mesh.v1.BatchService.ReadFile",
    "penstock.v1.Batches.UploadFile",
    "penstock.v1.Batches.RunLines",
    "envoy.service.ext_proc.v3.ExternalProcessor.Process",  # Envoy's protocol
}


def test_there_are_bidirectional_streams_between_all_tiers():
    assert {each.full_name.split(".")[-2] for each in bidi_methods()} >= {
        "AdmissionService",
        "QueueService",
        "SchedulerService",
        "WorkerService",
        "Inference",
    }


@pytest.mark.parametrize(
    "method", [each for each in bidi_methods() if each.full_name not in CALLS], ids=lambda method: method.full_name
)
def test_every_frame_is_one_oneof_with_hello_heartbeat_and_end(method):
    for message in (method.input_type, method.output_type):
        assert [each.name for each in message.oneofs] == ["frame"]
        frame = message.oneofs[0]
        outside = [each for each in message.fields if each.containing_oneof is None]
        assert [(each.name, each.message_type) for each in outside] == [("more", message)]
        kinds = {field.name: field.message_type.full_name for field in frame.fields}
        assert FRAME_MESSAGES.items() <= kinds.items()


@pytest.mark.parametrize("service", ["QueueService", "SchedulerService"])
def test_no_prompt_and_no_token_can_pass_through_queue_or_scheduler(service):
    [found] = [each for each in services() if each.name == service]
    assert content_fields(found) == set()


def test_tokens_pass_through_the_worker_service():
    [worker] = [each for each in services() if each.name == "WorkerService"]
    assert {"penstock.mesh.v1.Start.token_ids", "penstock.mesh.v1.Step.token_ids"} <= content_fields(worker)
