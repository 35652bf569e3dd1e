"""The certificate of a port that asks its callers for none: served, replaced and refused."""

import ssl

import grpc
import pytest
from structlog.testing import capture_logs

from door_certificates import DAY, CertificateAuthority, CertificateFolder
from penstock.chassis.config import ConfigError, load
from penstock.chassis.http2.limits import Http2Limits
from penstock.chassis.http2.server import Http2Server
from penstock.chassis.security.certificate_pair import CertificateInvalid
from penstock.chassis.security.certificates import handshake
from penstock.chassis.security.server_certificate import CHECK_INTERVAL_S, ServerCertificate
from penstock.picker.config import PickerConfig
from penstock.picker.server_tls import SELF_SIGNED_FOR, picker_security, self_signed


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def authority():
    return CertificateAuthority()


@pytest.fixture
def folder(tmp_path, authority):
    folder = CertificateFolder(tmp_path)
    folder.write(*authority.issue())
    return folder


def trusting(authority):
    context = authority.client_context("h2")
    context.check_hostname = False
    return context


def seen(server_context, client_context):
    """Return the certificate that a client receives, in DER."""
    client, server = handshake(server_context, client_context)
    assert client.selected_alpn_protocol() == "h2"
    assert server.getpeercert() is None, "the client was asked for a certificate"
    return client.getpeercert(binary_form=True)


def test_files_that_change_are_served_and_invalid_ones_are_not(folder, authority):
    clock = Clock()
    certificate = ServerCertificate(folder.certificate, folder.key, clock=clock)
    context = certificate.http2_context()
    first, ends_at = seen(context, trusting(authority)), certificate.expires_at
    chain, key = authority.issue(ends_in=9 * DAY)
    folder.write(chain, authority.issue()[1])  # the key of another certificate
    clock.now += CHECK_INTERVAL_S
    with capture_logs() as lines:
        assert seen(context, trusting(authority)) == first
    assert [each["event"] for each in lines] == ["server_certificate_invalid"]
    folder.write(chain, key)
    assert seen(context, trusting(authority)) == first, "files are not looked at in each handshake"
    clock.now += CHECK_INTERVAL_S
    assert seen(context, trusting(authority)) == ssl.PEM_cert_to_DER_cert(chain.decode())
    assert certificate.expires_at > ends_at


def test_a_self_signed_certificate_encrypts_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    certificate = self_signed()
    assert list(tmp_path.iterdir()) == []
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_alpn_protocols(["h2"])
    assert seen(certificate.http2_context(), client)
    assert certificate.expires_at > SELF_SIGNED_FOR.total_seconds()


def test_each_start_has_a_self_signed_certificate_of_its_own():
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_alpn_protocols(["h2"])
    assert seen(self_signed().http2_context(), client) != seen(self_signed().http2_context(), client)


def test_a_pair_that_cannot_be_used_stops_the_start(folder, authority):
    folder.write(authority.issue()[0], authority.issue()[1])
    with pytest.raises(CertificateInvalid):
        ServerCertificate(folder.certificate, folder.key)
    files = {"server_certificate": folder.certificate, "server_key": folder.key}
    with pytest.raises(ConfigError, match="PENSTOCK_PICKER_SERVER_CERTIFICATE"):
        picker_security(PickerConfig(unauthenticated_tls=True, **files))
    files["server_key"] = folder.folder / "none"
    with pytest.raises(ConfigError, match="PENSTOCK_PICKER_SERVER_CERTIFICATE"):
        picker_security(PickerConfig(unauthenticated_tls=True, **files))


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"UNAUTHENTICATED_TLS": "true", "INSECURE": "true"}, "UNAUTHENTICATED_TLS must be unset"),
        ({"SERVER_CERTIFICATE": "a", "SERVER_KEY": "b"}, "SERVER_CERTIFICATE needs unauthenticated_tls"),
        ({"UNAUTHENTICATED_TLS": "true", "SERVER_KEY": "b"}, "SERVER_CERTIFICATE and server_key must be set together"),
        (
            {"UNAUTHENTICATED_TLS": "true", "TLS_CERTIFICATE": "a", "TLS_KEY": "b", "TLS_CA": "c"},
            "UNAUTHENTICATED_TLS must be unset",
        ),
    ],
)
def test_settings_that_contradict_each_other_stop_the_start(settings, fault):
    with pytest.raises(ConfigError, match=f"PENSTOCK_PICKER_{fault}"):
        load(PickerConfig, "picker", {f"PENSTOCK_PICKER_{name}": value for name, value in settings.items()})


async def test_only_the_port_of_the_tier_is_served_so_off_loopback():
    security = picker_security(PickerConfig(unauthenticated_tls=True))
    server = Http2Server((), Http2Limits(message_bytes=1_000))
    assert security.bind(server, "0.0.0.0:0")
    await server.start()
    await server.stop(None)
    with pytest.raises(ConfigError, match="plaintext is served on loopback alone"):
        security.bind(grpc.aio.server(), "0.0.0.0:0")


def test_tls_without_certificates_of_callers_is_off_by_default():
    assert picker_security(PickerConfig()).server_certificate is None
