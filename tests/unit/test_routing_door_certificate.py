"""The certificate of the door: a pair that is not valid never replaces a valid one."""

import time

import pytest

from door_certificates import DAY, CertificateAuthority, CertificateFolder
from penstock.chassis.security.certificate_pair import CertificateInvalid, CertificatePair, read_pair
from penstock.routing.door_certificate import DoorCertificate


@pytest.fixture(scope="module")
def authority():
    return CertificateAuthority()


@pytest.fixture
def folder(tmp_path, authority):
    folder = CertificateFolder(tmp_path)
    folder.write(*authority.issue())
    return folder


async def load(folder):
    return await DoorCertificate.load(folder.certificate, folder.key)


async def test_a_changed_pair_replaces_the_last_one(folder, authority):
    door = await load(folder)
    chain, key = authority.issue()
    folder.write(chain, key)
    assert await door.poll() == CertificatePair(chain, key)


@pytest.mark.parametrize("fault", ["other key", "no key", "no certificate", "truncated"])
async def test_an_invalid_pair_is_refused_with_its_reason_and_the_last_one_is_kept(folder, authority, fault):
    door = await load(folder)
    before = door.pair
    (chain, key), (_, other) = authority.issue(), authority.issue()
    pairs = {
        "other key": (chain, other),
        "no key": (chain, b""),
        "no certificate": (b"nonsense", key),
        "truncated": (chain[:200], key),
    }
    folder.write(*pairs[fault])
    assert await door.poll() == before
    assert "are no certificate with its key" in door.fault
    folder.write(chain, key)
    assert await door.poll() == CertificatePair(chain, key)
    assert door.fault == ""


async def test_files_that_are_gone_leave_the_last_pair(folder):
    door = await load(folder)
    before = door.pair
    folder.key.unlink()
    assert await door.poll() == before
    assert "tls.key" in door.fault


def test_without_a_valid_pair_there_is_no_start(folder, authority):
    folder.write(authority.issue()[0], authority.issue()[1])
    with pytest.raises(CertificateInvalid, match="KEY_VALUES_MISMATCH"):
        read_pair(folder.certificate, folder.key)


async def test_the_end_of_a_pair_is_known_to_metrics(folder, authority):
    door = await load(folder)
    assert door.pair.expires_at == pytest.approx(time.time() + DAY.total_seconds(), abs=60)


async def test_a_pair_that_is_not_valid_now_has_the_end_0(folder, authority):
    folder.write(*authority.issue(ends_in=-DAY))
    assert (await load(folder)).pair.expires_at == 0.0
