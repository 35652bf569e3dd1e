"""TLS at the door of a real Envoy, with the certificate that routing serves as a secret over xDS."""

import asyncio
import json
import ssl

import grpc
import h2.config
import h2.connection
import h2.events
import pytest
from cryptography import x509

from door_certificates import CertificateAuthority, CertificateFolder
from envoy_proxy import ECHO, Backend, running_front
from free_ports import free_port

HSTS_S = 86_400
REQUEST = b"GET %s HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"


@pytest.fixture
def authority():
    return CertificateAuthority()


@pytest.fixture
def certificates(tmp_path, authority):
    folder = CertificateFolder(tmp_path)
    folder.write(*authority.issue())
    return folder


@pytest.fixture
async def front(tmp_path, authority, certificates):
    tls = {"DOOR_CERTIFICATE": certificates.certificate, "DOOR_KEY": certificates.key, "HSTS_MAX_AGE": HSTS_S}
    redirect = f"127.0.0.1:{free_port()}"
    async with running_front(
        tmp_path, Backend("a"), authority=authority.pem, REDIRECT_LISTEN=redirect, **tls
    ) as running:
        running.redirect = redirect
        yield running


async def exchange(port, request, **how):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **how)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


async def served_certificate(front, authority):
    """The serial number that a new connection is shown."""
    _, writer = await asyncio.open_connection("127.0.0.1", front.port, ssl=authority.client_context())
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).serial_number


def serial_of(chain):
    return x509.load_pem_x509_certificate(chain).serial_number


async def test_a_grpc_client_and_an_http1_client_are_served_over_tls(front, authority):
    assert await front.calls.unary_unary(f"{ECHO}Unary")(b"") == b"a"
    answer = await exchange(front.port, REQUEST % b"/v1/models", ssl=authority.client_context("http/1.1"))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert f"strict-transport-security: max-age={HSTS_S}".encode() in answer


async def test_an_http2_client_is_served_over_tls(front, authority):
    context = authority.client_context("h2", "http/1.1")
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port, ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    headers = [(":method", "GET"), (":scheme", "https"), (":authority", "127.0.0.1"), (":path", "/v1/models")]
    connection.send_headers(1, headers, end_stream=True)
    writer.write(connection.data_to_send())
    status, is_over = None, False
    while not is_over:
        for event in connection.receive_data(await reader.read(2**16)):
            if isinstance(event, h2.events.ResponseReceived):
                status = dict(event.headers)[b":status"]
            is_over |= isinstance(event, h2.events.StreamEnded)
    assert status == b"200"
    writer.close()


async def test_plaintext_and_old_versions_of_tls_are_refused(front, authority):
    assert await exchange(front.port, REQUEST % b"/v1/models") == b""
    async with grpc.aio.insecure_channel(front.address) as plaintext:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await plaintext.unary_unary(f"{ECHO}Unary")(b"")
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    old = authority.client_context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol|version"):
        await exchange(front.port, REQUEST % b"/v1/models", ssl=old)


async def test_the_redirecting_port_answers_with_the_door_and_forwards_nothing(front):
    port = int(front.redirect.rpartition(":")[2])
    answer = await exchange(port, REQUEST % b"/v1/models?limit=1")
    assert answer.startswith(b"HTTP/1.1 308")
    assert f"location: https://127.0.0.1:{front.port}/v1/models?limit=1".encode() in answer


async def test_a_rotated_certificate_is_shown_to_new_connections_and_cuts_no_stream(front, authority, certificates):
    chats = [front.calls.stream_stream(f"{ECHO}Chat")() for _ in range(16)]
    for number in range(6):
        word = str(number).encode()
        for chat in chats:
            await chat.write(word)
        assert {await chat.read() for chat in chats} == {b"a " + word}
        chain, key = authority.issue()
        certificates.write(chain, key)
        await front.plane.wait_for_line('"door_certificate_changed"')
        await front.plane.wait_for_line('"xds_ack"', "SECRET")
        assert await served_certificate(front, authority) == serial_of(chain)
        async with front.channel(own=number + 1) as fresh:
            assert await fresh.unary_unary(f"{ECHO}Unary")(b"") == b"a"
    await asyncio.gather(*(chat.done_writing() for chat in chats))
    assert {await chat.code() for chat in chats} == {grpc.StatusCode.OK}


async def test_a_key_of_another_certificate_never_replaces_a_valid_pair(front, authority, certificates):
    before = await served_certificate(front, authority)
    (chain, _), (_, other_key) = authority.issue(), authority.issue()
    certificates.write(chain, other_key)
    line = json.loads(await front.plane.wait_for_line('"door_certificate_invalid"'))
    assert "KEY_VALUES_MISMATCH" in line["error"]
    assert await served_certificate(front, authority) == before
    chain, key = authority.issue()
    certificates.write(chain, key)
    await front.plane.wait_for_line('"xds_ack"', "SECRET")
    assert await served_certificate(front, authority) == serial_of(chain)
