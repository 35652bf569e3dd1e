"""Certificates that change while a process runs: new handshakes use them, open streams stay, wrong sets are ignored."""

import asyncio
import gc
import socket
from datetime import timedelta

import grpc
import pytest
from cryptography import x509
from structlog.testing import capture_logs

from identified_peers import Ends, echo_server, edge_hello
from mesh_identities import OUR_RPCS, Identities
from penstock.chassis.lifecycle import background
from penstock.chassis.security.certificates import CertificateFiles, CertificatesInvalid
from penstock.chassis.security.channels import Dialer
from penstock.chassis.security.process import ProcessSecurity
from penstock.mesh.v1.admission_pb2 import AdmitRequest
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub

ADMIT = next(each for each in OUR_RPCS if each.path.endswith("/Admit"))


@pytest.fixture
def identities(tmp_path):
    return Identities.create(tmp_path)


async def test_new_handshakes_use_rotated_certificates_and_open_streams_stay(identities):
    server_files = CertificateFiles(identities.issue("auth"), clock=ticking())
    edge_files = CertificateFiles(identities.issue("edge"), clock=ticking())
    async with (
        echo_server(ProcessSecurity(certificates=server_files)) as (_, address),
        Dialer(edge_files).channel(address, "auth") as first,
        Dialer(edge_files).channel(address, "auth") as second,
    ):
        old = Ends(AdmissionServiceStub(first).Admit, edge_hello())
        async with background(old.link.run()):
            assert await old.next() == ("up", "auth-1")
            assert await serial_of(address, identities) == serial_in(server_files)
            before = serial_in(server_files), serial_in(edge_files)
            identities.issue("auth")
            identities.issue("edge")
            assert await serial_of(address, identities) == serial_in(server_files)
            assert before[0] != serial_in(server_files)
            assert before[1] != serial_in(edge_files)
            new = Ends(AdmissionServiceStub(second).Admit, edge_hello())
            async with background(new.link.run()):
                assert await new.next() == ("up", "auth-1")
            assert old.link.is_up
            assert old.events.empty()


async def test_a_stream_outlives_several_rotations_with_other_calls_of_its_channel(identities):
    edge_files = CertificateFiles(identities.issue("edge"), clock=ticking())
    async with (
        echo_server(ProcessSecurity(certificates=CertificateFiles(identities.issue("auth")))) as (_, address),
        Dialer(edge_files).channel(address, "auth") as shared,
    ):
        old = Ends(AdmissionServiceStub(shared).Admit, edge_hello())
        async with background(old.link.run()):
            assert await old.next() == ("up", "auth-1")
            for _ in range(3):
                identities.issue("edge")
                new = Ends(AdmissionServiceStub(shared).Admit, edge_hello())
                async with background(new.link.run()):
                    assert await new.next() == ("up", "auth-1")
                gc.collect()
            assert old.link.is_up
            assert old.events.empty()


async def test_a_new_authority_replaces_the_former_one_without_a_restart(identities, tmp_path):
    """As operators do it: first both authorities are trusted, then leaves of the new one are issued."""
    files = CertificateFiles(identities.issue("auth"), clock=ticking())
    later = Identities(tmp_path, Identities.create(tmp_path).authority)
    hello = AdmitRequest(hello=edge_hello()).SerializeToString()
    async with echo_server(ProcessSecurity(certificates=files)) as (_, address):
        both = identities.authority.certificate_pem + later.authority.certificate_pem
        files.paths.authorities.write_bytes(both)
        for each in (identities, later):
            leaf = each.authority.issue("edge", "edge-1")
            credentials = grpc.ssl_channel_credentials(both, leaf.key_pem, leaf.certificate_pem)
            options = [("grpc.ssl_target_name_override", "auth.penstock.internal")]
            async with grpc.aio.secure_channel(address, credentials, options=options) as to_auth:
                assert await ADMIT.refusal(to_auth, hello) is None
        later.issue("auth")
        async with later.channel(address, "auth", "edge") as to_auth:
            assert await ADMIT.refusal(to_auth, hello) is None
        async with identities.channel(address, "auth", "edge") as to_auth:
            assert await ADMIT.refusal(to_auth, hello) == ("UNAVAILABLE", "CONNECTION_LOST")


def test_a_half_written_set_of_files_leaves_the_former_one_in_use(identities):
    paths = identities.issue("queue")
    files = CertificateFiles(paths, clock=ticking())
    former, key = files.current(), paths.key.read_bytes()
    with capture_logs() as logs:
        paths.key.write_bytes(identities.authority.issue("queue", "queue-1").key_pem)
        assert files.current() is former
        assert files.current() is former
        paths.key.write_bytes(b"")
        assert files.current() is former
        paths.key.unlink()
        assert files.current() is former
    assert [each["event"] for each in logs] == ["certificates_not_loaded"] * 3
    paths.key.write_bytes(key)
    assert files.current().certificate == former.certificate


def test_the_certificate_of_another_process_is_not_loaded(identities):
    paths = identities.issue("queue")
    files = CertificateFiles(paths, clock=ticking())
    identities.authority.issue("queue", "queue-2").save(paths.key.parent, paths.key.stem, identities.authority)
    with capture_logs() as logs:
        assert files.current().identity.instance_id == "queue-1"
    assert "queue-2" in logs[0]["because"]


def test_files_are_looked_at_once_a_second(identities):
    now = 0.0
    files = CertificateFiles(identities.issue("queue"), clock=lambda: now)
    former = files.current()
    identities.issue("queue")
    assert files.current() is former
    now = 1.0
    assert files.current() is not former


@pytest.mark.parametrize("options", [{"valid": timedelta(seconds=-1)}, {}])
def test_an_unusable_certificate_stops_the_start_with_its_reason(identities, tmp_path, options):
    authority = None if options else Identities.create(tmp_path).authority
    paths = identities.issue("queue", authority=authority, **options)
    with pytest.raises(CertificatesInvalid, match="expired" if options else "issuer"):
        CertificateFiles(paths)


def ticking():
    """A clock that lets the files be looked at in each call."""
    now = 0.0

    def clock():
        nonlocal now
        now += 10.0
        return now

    return clock


def serial_in(files):
    return x509.load_pem_x509_certificate(files.current().certificate).serial_number


async def serial_of(address, identities):
    """The serial number of the certificate that a server presents in a new handshake."""
    host, _, port = address.rpartition(":")
    context = CertificateFiles(identities.issue("operator")).current().client_context
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="", family=socket.AF_INET)
    found = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    writer.close()
    return int(found, 16)
