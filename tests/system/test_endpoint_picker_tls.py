"""TLS between a real Envoy and the endpoint picker without a certificate of the caller, as gateways connect."""

import pytest

from door_certificates import CertificateAuthority, CertificateFolder
from picker_front import running_picker

VERIFIED = {"match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": "localhost"}}]}


def verifying(folder, authority):
    """Return Envoy's context that accepts certificates of an authority for `localhost` alone."""
    path = folder / "authority.pem"
    path.write_bytes(authority.pem)
    return {"common_tls_context": {"validation_context": {"trusted_ca": {"filename": str(path)}, **VERIFIED}}}


@pytest.fixture
def certificate(tmp_path):
    folder = tmp_path / "certificate"
    folder.mkdir()
    return CertificateFolder(folder)


async def test_a_gateway_that_verifies_nothing_connects_to_a_self_signed_certificate(tmp_path):
    async with running_picker(tmp_path, tls={}, UNAUTHENTICATED_TLS=True, servers=1) as front:
        assert (await front.call())[0] == 200
        assert any('"callers_unauthenticated"' in line for line in front.process.lines)


async def test_a_gateway_can_verify_the_certificate_that_the_settings_name(tmp_path, certificate):
    authority = CertificateAuthority()
    certificate.write(*authority.issue())
    files = {"SERVER_CERTIFICATE": certificate.certificate, "SERVER_KEY": certificate.key}
    tls = verifying(tmp_path, authority)
    async with running_picker(tmp_path, tls=tls, UNAUTHENTICATED_TLS=True, servers=1, **files) as front:
        assert (await front.call())[0] == 200


@pytest.mark.parametrize("is_plaintext", [True, False])
async def test_a_gateway_in_plaintext_or_of_another_authority_fails_its_requests(tmp_path, is_plaintext):
    tls = None if is_plaintext else verifying(tmp_path, CertificateAuthority())
    async with running_picker(tmp_path, tls=tls, UNAUTHENTICATED_TLS=True, servers=1) as front:
        assert (await front.call())[0] in {500, 503, 504}
        assert not front.servers[0].requests


async def test_without_the_setting_the_picker_takes_no_tls(tmp_path):
    async with running_picker(tmp_path, tls={}, servers=1) as front:
        assert (await front.call())[0] in {500, 503, 504}
