"""Structure of JSON bodies: what is refused before it is parsed, and that the count agrees with the parser."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.edge.api.openai.body import structure
from penstock.edge.api.openai.body.structure import BodyTooComplex, check_structure
from penstock.edge.request import limits

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 65 + b"]" * 65, id="deep"),
        pytest.param(b"[" + b"[]," * limits.JSON_CONTAINERS + b"[]]", id="lists"),
        pytest.param(b"[" + b"{}," * limits.JSON_CONTAINERS + b"{}]", id="objects"),
        pytest.param(b"[" + b'"",' * limits.JSON_STRINGS + b'""]', id="strings"),
        pytest.param(b"[" + b"0," * (limits.JSON_ELEMENTS + 1) + b"0]", id="elements"),
    ],
)
def test_a_body_beyond_a_limit_is_refused(body):
    with pytest.raises(BodyTooComplex):
        check_structure(body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 64 + b"]" * 64, id="as deep as allowed"),
        pytest.param(b"[" + b"[]," * (limits.JSON_CONTAINERS - 2) + b"[]]", id="as many lists as allowed"),
        pytest.param(orjson.dumps(["[" * 100_000 + "{,}" * 500_000]), id="brackets in a string"),
        pytest.param(orjson.dumps(['"[' * 500_000]), id="escaped quotes"),
        pytest.param(orjson.dumps(["\\" * 500_001 + '"[' * 70_000]), id="backslashes before a quote"),
    ],
)
def test_a_body_within_the_limits_passes(body):
    check_structure(body)


def depth_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(value=JSON, slice_bytes=st.integers(1, 7), is_ascii=st.booleans())
def test_the_depth_is_the_parsers_however_the_body_is_cut(value, slice_bytes, is_ascii):
    body, depth = json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass"), depth_of(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "SLICE_BYTES", slice_bytes)
        patch.setattr(limits, "JSON_DEPTH", depth)
        check_structure(body)
        if depth:
            patch.setattr(limits, "JSON_DEPTH", depth - 1)
            with pytest.raises(BodyTooComplex):
                check_structure(body)
