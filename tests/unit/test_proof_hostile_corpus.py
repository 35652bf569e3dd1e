"""The corpus of hostile cases: its size, its coverage of ports and methods, and its rules of acceptance."""

from collections import Counter

import pytest
from google.protobuf.descriptor import FieldDescriptor

from penstock.chassis.errors import InvalidArgument
from penstock.chassis.security.permissions import PERMISSIONS
from penstock.edge.api.grpc.embeddings import embedding_call_of
from penstock.local_mesh.plan import MeshOptions, plan_mesh
from penstock.mesh.limits.rules import Apart, Data, Many, Unchecked
from penstock.mesh.limits.table import TABLE
from penstock.mesh.limits.violations import violation_of
from penstock.proofs.hostile.certificates import Authority, Credentials, identities, mesh_leaves, spiffe_names
from penstock.proofs.hostile.corpus import CORPORA, INSIDERS
from penstock.proofs.hostile.corpus.case import reached_handler, stays_open, succeeded
from penstock.proofs.hostile.corpus.grpc_requests import wrong_embeddings, wrong_requests
from penstock.proofs.hostile.corpus.impersonation import impersonation_cases
from penstock.proofs.hostile.corpus.inner_services import OPERATOR_METHODS
from penstock.proofs.hostile.corpus.malformed_messages import DOOR_METHODS, INNER_METHODS
from penstock.proofs.hostile.corpus.tier_streams import TIER_STREAMS
from penstock.proofs.hostile.corpus.wrong_frames import MAX_FRAME_BYTES, wrong_frames
from penstock.proofs.hostile.judge.verdict import MIN_CASES
from penstock.proofs.hostile.ports import Port, PortKind, ports_of
from penstock.proofs.hostile.target import INTRUDER
from penstock.proofs.hostile.wire.grpc_call import CallResult, framed, messages_of
from penstock.v1 import admin_pb2, batches_pb2, inference_pb2
from penstock.v1.inference_pb2 import GenerateRequest
from raw_peers import example_target

PUBLIC_METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in (inference_pb2, batches_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def cases(target):
    return [case for source in (CORPORA | INSIDERS).values() for case in source(target)]


def test_the_corpus_has_at_least_300_cases_with_labels_of_their_own():
    found = cases(example_target())
    assert len(found) >= MIN_CASES
    assert not [label for label, count in Counter(case.label for case in found).items() if count > 1]


def test_a_mesh_in_plaintext_without_doors_for_envoy_has_300_cases_as_well():
    absent = {PortKind.PROXY_GRPC, PortKind.PROXY_HTTP, PortKind.CHECKS, PortKind.HEALTH}
    kinds = [kind for kind in PortKind if kind not in absent]
    assert len(cases(example_target(kinds))) >= MIN_CASES


def test_every_public_method_gets_malformed_messages():
    assert set(PUBLIC_METHODS) <= set(DOOR_METHODS)


def test_every_stream_between_tiers_gets_malformed_messages_and_false_hellos():
    methods = {method for found in INNER_METHODS.values() for method in found}
    assert {stream.path for stream in TIER_STREAMS} <= methods
    assert {f"/{path}" for path in PERMISSIONS if path.startswith("penstock.mesh.v1.")} <= methods


def test_every_method_of_operators_is_called_by_strangers():
    admin = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
    assert {f"/{admin.full_name}/{method.name}" for method in admin.methods} <= set(OPERATOR_METHODS)


@pytest.mark.parametrize("stream", TIER_STREAMS, ids=lambda stream: stream.method)
def test_each_wrong_frame_is_out_of_the_range_of_one_field(stream):
    found = list(wrong_frames(stream.request))
    assert found or stream.method == "RoutingService/WatchRegion", "its edge sends no frame of its own"
    for path, frame in found:
        kind = getattr(frame, frame.WhichOneof("frame"))
        assert violation_of(kind), path


@pytest.mark.parametrize("stream", TIER_STREAMS, ids=lambda stream: stream.method)
def test_each_checked_number_of_a_frame_has_a_wrong_case(stream):
    paths = {path for path, _ in wrong_frames(stream.request)}
    for kind in stream.request.DESCRIPTOR.oneofs_by_name["frame"].fields:
        if kind.name in ("hello", "heartbeat", "end"):
            continue
        for field in kind.message_type.fields:
            rule = TABLE[kind.message_type.full_name][field.name]
            if isinstance(rule, Unchecked | Apart | Many) or field.type == FieldDescriptor.TYPE_MESSAGE:
                continue
            covers_all = getattr(rule, "maximum", 0) >= 2**32 - 1 and field.cpp_type == FieldDescriptor.CPPTYPE_UINT32
            is_long = isinstance(rule, Data) and rule.max_bytes > MAX_FRAME_BYTES
            assert covers_all or is_long or f"{kind.message_type.name}.{field.name}" in paths


def test_each_wrong_request_differs_from_the_valid_one():
    valid = GenerateRequest(model="tiny", text="x", max_output_tokens=1)
    requests = list(wrong_requests(valid))
    assert all(request != valid for _, request in requests)
    assert len({name for name, _ in requests}) == len(requests)


def test_wrong_calls_for_embeddings_have_names_of_their_own():
    calls = list(wrong_embeddings("tiny"))
    assert len({name for name, _ in calls}) == len(calls)
    for _, call in calls:
        if call.dimensions != 2**32 - 1:  # the size of the model's vectors is the limit
            with pytest.raises(InvalidArgument):
                embedding_call_of(call)


HELLO, REFUSED = (b"hello",), CallResult(was_refused=True)


@pytest.mark.parametrize(
    ("rule", "result", "is_accepted"),
    [
        (succeeded, CallResult(status=0), True),
        (succeeded, CallResult(status=16), False),
        (succeeded, CallResult(messages=HELLO, status=13), True),
        (succeeded, REFUSED, False),
        (reached_handler, CallResult(status=3), True),
        (reached_handler, CallResult(status=12), False),
        (reached_handler, CallResult(status=7), False),
        (stays_open, CallResult(messages=HELLO, is_open=True), True),
        (stays_open, CallResult(messages=HELLO, status=7), False),
        (stays_open, CallResult(is_open=True), False),
        (stays_open, REFUSED, False),
    ],
)
def test_what_counts_as_accepted(rule, result, is_accepted):
    assert rule(result) is is_accepted


def test_whole_messages_are_read_from_a_stream_and_the_rest_is_left():
    assert messages_of(framed(b"a") + framed(b"bc") + framed(b"def")[:6]) == (b"a", b"bc")


def test_ports_are_those_of_the_first_process_of_each_tier(tmp_path):
    options = MeshOptions(edges=2, workers=2, engine="sim", base_port=7000)
    plan = plan_mesh(options, tmp_path, "pk_dev_0", envoy="/bin/envoy")
    found = {port.kind: port.address for port in ports_of(plan)}
    assert found[PortKind.EDGE_GRPC] == plan.grpc
    assert found[PortKind.EDGE_HTTP] == plan.http
    assert found[PortKind.FRONT] == plan.proxy
    assert found[PortKind.WORKER] == "127.0.0.1:7005"
    assert (found[PortKind.AUTH], found[PortKind.CHECKS]) == ("127.0.0.1:7002", "127.0.0.1:7007")


def test_an_ipv6_address_is_split_at_its_last_colon():
    assert Port(PortKind.AUTH, "auth", "[::1]:7002").endpoint == ("::1", 7002)


def test_an_attacker_makes_certificates_of_every_kind(tmp_path):
    mesh, own = tmp_path / "mesh", tmp_path / "own"
    (mesh / "certs").mkdir(parents=True)
    own.mkdir()
    authority = Authority(mesh / "certs")
    for tier in ("edge", "worker"):
        leaf = authority.issue(tier, f"{tier}-1")
        assert spiffe_names(leaf.certificate) == ("penstock.local", tier, f"{tier}-1")
    leaves = mesh_leaves(mesh)
    assert set(leaves) == {"edge", "worker"}
    found = identities("edge", leaves, Authority(own), authority)
    assert set(found) == set(Credentials)
    assert found[Credentials.WRONG_TIER].tier == "worker"
    assert found[Credentials.RIGHT].instance_id == "edge-1"
    assert spiffe_names(found[Credentials.OTHER_DOMAIN].certificate).trust_domain == "attacker.example"
    target = example_target(leaves=leaves, identities={"edge": found})
    ids = {credentials: instance_id for credentials, _, instance_id in target.credentials_of("edge")}
    assert ids[Credentials.EXPIRED] == "edge-1", "nothing but the certificate is wrong"
    assert ids[Credentials.RIGHT] == INTRUDER
    names = {case.name for case in impersonation_cases(target)}
    assert {
        "AdmissionService/Admit by the true worker",
        "AdmissionService/Admit as edge, certificate of the tier",
    } <= names
    assert "Admit by the true edge" not in names
