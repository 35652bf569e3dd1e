"""HTTP: strangers, wrong keys, forged identity headers, and bodies that a valid key does not make valid."""

import base64
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import orjson

from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase, http_outcome
from penstock.proofs.hostile.ports import HTTP_DOORS, Port
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire import http1

COMPLETIONS, CHAT, RESPONSES, MODELS = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/models"
MESSAGES = "/v1/messages"
JSON = ("Content-Type", "application/json")
DEEP = 20_000  # nested arrays

FORGED_HEADERS = (
    ("X-Penstock-Identity", "tenant=admin"),
    ("X-Penstock-Identity", base64.b64encode(b'{"tenant_id":"dev","weight":1000}').decode()),
    ("X-Penstock-Tenant", "dev"),
    ("X-Penstock-Key-Id", "dev"),
    ("X-Forwarded-User", "dev"),
    ("X-Forwarded-Client-Cert", "URI=spiffe://penstock.local/penstock/envoy/envoy"),
    ("X-Forwarded-For", "127.0.0.1"),
    ("X-Real-IP", "127.0.0.1"),
    ("Forwarded", "for=127.0.0.1;by=127.0.0.1"),
    ("X-Envoy-Internal", "true"),
    ("X-Envoy-External-Address", "127.0.0.1"),
    ("X-Envoy-Original-Path", "/health"),
    ("X-Original-URL", "/health"),
    ("X-Auth-Request-User", "dev"),
    ("X-Tenant-Id", "dev"),
    ("Remote-User", "dev"),
    ("Proxy-Authorization", "Bearer pk_dev_00000000000000000000000000000000"),
    ("Cookie", "session=dev; penstock_key=pk_dev_0"),
)


def http_request_cases(target: HostileTarget) -> Iterator[HostileCase]:
    for port in target.ports_of(*HTTP_DOORS):
        yield from _stranger_cases(port, target)
        yield from _key_cases(port, target)
        yield from _body_cases(port, target)
        yield from _path_cases(port, target)


def _case(group: str, name: str, port: Port, sent: bytes) -> HostileCase:
    async def send() -> CaseOutcome:
        return http_outcome(await http1.exchange(port.endpoint, sent))

    return HostileCase(group=group, name=name, port=port, send=send)


def _prompt(model_name: str, **fields: Any) -> dict[str, Any]:
    return {"model": model_name, "prompt": "Say one word.", "max_tokens": 1, **fields}


def _stranger_cases(port: Port, target: HostileTarget) -> Iterator[HostileCase]:
    case, body = partial(_case, "HTTP identity"), orjson.dumps(_prompt(target.model))
    for path in (COMPLETIONS, CHAT, RESPONSES, MESSAGES, f"{MESSAGES}/count_tokens"):
        yield case(f"no key for {path}", port, http1.request("POST", path, [JSON], body))
    yield case("no key for the list of models", port, http1.request("GET", MODELS))
    yield case("no key for one model", port, http1.request("GET", f"{MODELS}/{target.model}"))
    for number, header in enumerate(FORGED_HEADERS):
        sent = http1.request("POST", COMPLETIONS, [JSON, header], body)
        yield case(f"forged {header[0]} ({number})", port, sent)


def _key_cases(port: Port, target: HostileTarget) -> Iterator[HostileCase]:
    body = orjson.dumps(_prompt(target.model))
    for name, headers in wrong_keys(target.api_key):
        sent = http1.request("POST", COMPLETIONS, [JSON, *headers], body)
        yield _case("HTTP keys", name, port, sent)
    key_in_query = http1.request("POST", f"{COMPLETIONS}?api_key={target.api_key}", [JSON], body)
    yield _case("HTTP keys", "key in the query", port, key_in_query)


def wrong_keys(key: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield headers near a valid key, none of which may be accepted."""
    key_id, secret = key.split("_")[1], key.rpartition("_")[2]
    values = {
        "empty": "",
        "scheme alone": "Bearer",
        "empty bearer": "Bearer ",
        "null": "Bearer null",
        "key without a scheme": key,
        "basic scheme": f"Basic {base64.b64encode(f'{key_id}:{secret}'.encode()).decode()}",
        "token scheme": f"Token {key}",
        "one character more": f"Bearer {key}0",
        "one character less": f"Bearer {key[:-1]}",
        "upper case": f"Bearer {key.upper()}",
        "secret alone": f"Bearer {secret}",
        "identifier alone": f"Bearer pk_{key_id}_",
        "other secret": f"Bearer pk_{key_id}_{'0' * len(secret)}",
        "other identifier": f"Bearer pk_{key_id}x_{secret}",
        "quoted": f'Bearer "{key}"',
        "two keys": f"Bearer pk_x_{'0' * 32} {key}",
        "wildcard": "Bearer *",
        "SQL": "Bearer ' OR '1'='1",
        "path": "Bearer ../../auth.sqlite",
        "4 KiB of zeros before the key": f"Bearer {'0' * 4096}{key}",
        "8 KiB": f"Bearer {'k' * 8192}",
        "unsigned JWT": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJkZXYiLCJleHAiOjk5OTk5OTk5OTl9.",
        "fullwidth characters": "Bearer pk_dev_\xa0\xad",
    }
    for name, value in values.items():
        yield name, [("Authorization", value)]
    other = f"Bearer pk_{key_id}_{'0' * len(secret)}"
    yield "other secret as X-Api-Key", [("X-Api-Key", f"pk_{key_id}_{'0' * len(secret)}")]
    yield "two keys as X-Api-Key", [("X-Api-Key", key), ("X-Api-Key", key)]
    yield "wrong key, and the key as X-Api-Key", [("Authorization", other), ("X-Api-Key", key)]
    yield "key in a cookie", [("Cookie", f"authorization=Bearer {key}")]
    yield "wrong key, then the key as a second header", [("Authorization", other), ("Authorization", f"Bearer {key}")]


_WRONG_FIELDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "unknown model": {"model": "no-such-model"},
        "model is a number": {"model": 1},
        "model of 1 KiB": {"model": "m" * 1024},
        "no prompt": {"prompt": None},
        "prompt is an object": {"prompt": {}},
        "prompt is a number": {"prompt": 5},
        "token ids are negative": {"prompt": [-1, -2]},
        "token ids are beyond the vocabulary": {"prompt": [2**31, 2**32 - 1]},
        "token ids are floats": {"prompt": [0.5]},
        "token ids are nested twice": {"prompt": [[[1]], [[2]]]},
        "129 prompts": {"prompt": ["a"] * 129},
        "50 prompts of 3 answers": {"prompt": ["a"] * 50, "n": 3},
        "output of -1": {"max_tokens": -1},
        "output of 0": {"max_tokens": 0},
        "output of 2**70": {"max_tokens": 1e21},
        "output is a list": {"max_tokens": [1]},
        "temperature of -1": {"temperature": -1},
        "temperature of 1e300": {"temperature": 1e300},
        "temperature is text": {"temperature": "hot"},
        "top_p of 2": {"top_p": 2},
        "top_p of -1": {"top_p": -1},
        "penalty of 99": {"presence_penalty": 99},
        "17 stop strings": {"stop": ["a"] * 17},
        "stop string of 1 KiB": {"stop": "s" * 1024},
        "stop is a number": {"stop": 5},
        "129 choices": {"n": 129},
        "best of fewer": {"n": 3, "best_of": 2},
        "301 biases": {"logit_bias": {str(token_id): 1 for token_id in range(301)}},
        "bias of a word": {"logit_bias": {"word": 1}},
        "bias of an id beyond the vocabulary": {"logit_bias": {"4294967295": 1}},
        "bias of an id of 10,000 digits": {"logit_bias": {"9" * 10_000: 1}},
        "bias of 1e300": {"logit_bias": {"5": 1e300}},
        "21 likeliest tokens": {"logprobs": 21},
        "-1 choices": {"n": -1},
        "seed is an object": {"seed": {}},
        "stream is text": {"stream": "yes"},
        "text of 5 MiB": {"prompt": "a " * (5 << 19)},
    }
)


def wrong_bodies(model: str) -> Iterator[tuple[str, bytes]]:
    """Yield bodies of a completion that a valid key does not make valid."""
    for name, changed in _WRONG_FIELDS.items():
        yield name, orjson.dumps(_prompt(model, **changed))
    yield from _wrong_texts(orjson.dumps(_prompt(model))).items()


def _wrong_texts(whole: bytes) -> dict[str, bytes]:
    """Return bodies that are not JSON, or no object, by what is wrong with them."""
    return {
        "empty": b" ",
        "text": b"hello",
        "null": b"null",
        "array": b"[]",
        "number": b"1",
        "half an object": whole[:-1],
        "two objects": whole + whole,
        "UTF-16": whole.decode().encode("utf-16"),
        "invalid UTF-8": whole.replace(b"one", b"\xff\xfe\xc0"),
        "lone surrogate": whole.replace(b"one", b"\\ud800"),
        "NUL": whole.replace(b"one", b"\x00"),
        "NaN": whole.replace(b": 1", b":NaN").replace(b":1", b":NaN"),
        "Infinity": whole.replace(b":1", b":Infinity"),
        "number of 10,000 digits": whole.replace(b":1", b":" + b"9" * 10_000),
        "comment": b"/* */" + whole,
        "trailing comma": whole[:-1] + b",}",
        "single quotes": whole.replace(b'"', b"'"),
        "arrays nested 20,000 deep": b"[" * DEEP + b"]" * DEEP,
        "objects nested 20,000 deep": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        "arrays nested 20,000 deep in a field": whole[:-1] + b',"stop":' + b"[" * DEEP + b"]" * DEEP + b"}",
        "key of 64 KiB": b'{"' + b"k" * 65_536 + b'":1}',
        "form": b"model=x&prompt=y",
        "XML": b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
        "gzip": b"\x1f\x8b\x08\x00" + b"\x00" * 32,
    }


def _body_cases(port: Port, target: HostileTarget) -> Iterator[HostileCase]:
    key = ("Authorization", f"Bearer {target.api_key}")
    for name, body in wrong_bodies(target.model):
        yield _case("HTTP bodies", name, port, http1.request("POST", COMPLETIONS, [JSON, key], body))
    for name, message in {
        "content is a number": {"role": "user", "content": 5},
        "no role": {"content": "x"},
        "role of 1 KiB": {"role": "r" * 1024, "content": "x"},
        "message is text": "hello",
        "content part of an unknown type": {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
    }.items():
        chat = orjson.dumps({"model": target.model, "max_tokens": 1, "messages": [message]})
        yield _case("HTTP bodies", f"chat: {name}", port, http1.request("POST", CHAT, [JSON, key], chat))
    for name, content in {
        "no block": [],
        "block is a number": [5],
        "block of an unknown type": [{"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}],
        "result without a call": [{"type": "tool_result"}],
        "4,097 results": [{"type": "tool_result", "tool_use_id": "t"}] * 4097,
    }.items():
        turns = [{"role": "user", "content": content}]
        sent = orjson.dumps({"model": target.model, "max_tokens": 1, "messages": turns})
        yield _case("HTTP bodies", f"messages: {name}", port, http1.request("POST", MESSAGES, [JSON, key], sent))
    many = orjson.dumps({"model": target.model, "messages": [{"role": "user", "content": "x"}] * 4097})
    yield _case("HTTP bodies", "chat: 4,097 messages", port, http1.request("POST", CHAT, [JSON, key], many))


def _path_cases(port: Port, target: HostileTarget) -> Iterator[HostileCase]:
    key, body = ("Authorization", f"Bearer {target.api_key}"), orjson.dumps(_prompt(target.model))
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "post"):
        yield _case("HTTP paths", f"{method} completions", port, http1.request(method, COMPLETIONS, [key]))
    for path in (
        "/metrics",
        "/stats",
        "/config_dump",
        "/server_info",
        "/quitquitquit",
        "/admin",
        "/debug/pprof",
        "/v1/admin",
        "/v1/keys",
        "/v1/../metrics",
        "/v1/models/../../admin",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/v1/models/%00",
        "/v1/models/..%2f..%2fauth.sqlite",
        "http://127.0.0.1:1/",
        "/penstock.v1.Admin/Drain",
        "/penstock.mesh.v1.QueueService/Submit",
    ):
        yield _case("HTTP paths", f"GET {path}", port, http1.request("GET", path, [key]))
        yield _case("HTTP paths", f"POST {path}", port, http1.request("POST", path, [JSON, key], body))
    yield _case("HTTP paths", "CONNECT", port, http1.request("CONNECT", "127.0.0.1:22", [key]))
