"""Stored responses are sealed with the operator's keys, and bound to their tenant, response and part."""

import base64

import pytest

from penstock.edge.stored.cipher import KEY_BYTES, Part, ResponseCipher, SealBroken, parse_keys
from penstock.mesh.v1.responses_pb2 import ResponseKey

KEY = ResponseKey(tenant_id="acme", response_id="resp_1")
OLD, NEW = b"o" * KEY_BYTES, b"n" * KEY_BYTES


def encoded(key):
    return base64.b64encode(key).decode()


def test_a_part_is_opened_with_the_key_that_sealed_it():
    cipher = ResponseCipher({"new": NEW})
    sealed = cipher.seal(KEY, Part.REQUEST, b"a prompt")
    assert b"a prompt" not in sealed
    assert cipher.open(KEY, Part.REQUEST, sealed) == b"a prompt"
    assert cipher.seal(KEY, Part.REQUEST, b"a prompt") != sealed


def test_a_former_key_opens_what_it_sealed_and_seals_nothing_new():
    sealed = ResponseCipher({"old": OLD}).seal(KEY, Part.OUTPUT, b"text")
    rotated = ResponseCipher({"new": NEW, "old": OLD})
    assert rotated.open(KEY, Part.OUTPUT, sealed) == b"text"
    assert ResponseCipher({"new": NEW}).open(KEY, Part.OUTPUT, rotated.seal(KEY, Part.OUTPUT, b"text")) == b"text"


@pytest.mark.parametrize(
    "key",
    [
        ResponseKey(tenant_id="umbrella", response_id="resp_1"),
        ResponseKey(tenant_id="acme", response_id="resp_2"),
        ResponseKey(tenant_id="acmer", response_id="esp_1"),
    ],
)
def test_a_part_of_another_response_is_not_opened(key):
    cipher = ResponseCipher({"new": NEW})
    with pytest.raises(SealBroken, match="was changed"):
        cipher.open(key, Part.REQUEST, cipher.seal(KEY, Part.REQUEST, b"text"))


def test_another_part_of_the_same_response_is_not_opened():
    cipher = ResponseCipher({"new": NEW})
    with pytest.raises(SealBroken):
        cipher.open(KEY, Part.OUTPUT, cipher.seal(KEY, Part.REQUEST, b"text"))


def test_each_changed_or_missing_byte_is_detected():
    cipher = ResponseCipher({"new": NEW})
    sealed = cipher.seal(KEY, Part.REQUEST, b"text")
    for index in range(len(sealed)):
        changed = bytearray(sealed)
        changed[index] ^= 1
        for broken in (bytes(changed), sealed[:index]):
            with pytest.raises(SealBroken):
                cipher.open(KEY, Part.REQUEST, broken)


def test_a_missing_key_is_named_with_the_setting_that_lacks_it():
    sealed = ResponseCipher({"old": OLD}).seal(KEY, Part.OUTPUT, b"text")
    with pytest.raises(SealBroken, match=r"'old'.*PENSTOCK_EDGE_RESPONSE_KEYS"):
        ResponseCipher({"new": NEW}).open(KEY, Part.OUTPUT, sealed)


def test_keys_are_read_in_order_from_a_setting():
    assert list(parse_keys(f"new:{encoded(NEW)}, old:{encoded(OLD)}").items()) == [("new", NEW), ("old", OLD)]
    assert parse_keys("") == {}


@pytest.mark.parametrize(
    "text", ["abc", "a:abc", f":{encoded(NEW)}", f"a:{encoded(NEW[1:])}", f"a:{encoded(NEW)},a:{encoded(OLD)}"]
)
def test_wrong_keys_are_refused_without_repeating_them(text):
    with pytest.raises(ValueError, match="openssl rand") as refused:
        parse_keys(text)
    assert encoded(NEW) not in str(refused.value)
