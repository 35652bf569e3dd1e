"""What the endpoint picker reads: bodies and headers of requests, metrics and lists of endpoints."""

import asyncio

import pytest

from penstock.picker.config import PickerConfig
from penstock.picker.endpoints.discovery import EndpointDiscovery, EndpointInvalid, parse_endpoints
from penstock.picker.endpoints.load import EndpointLoad, LoadUnreadable, parse_load
from penstock.picker.requests.body import MAX_OUTPUT_TOKENS, parse_body
from penstock.picker.requests.caller import CallerHeaders
from penstock.picker.requests.prefix import prefix_hashes
from penstock.v1.inference_pb2 import Priority

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7}'


def test_a_body_has_model_prompt_and_output_limit():
    found = parse_body(CHAT)
    assert (found.model, found.max_output_tokens, found.prompt_bytes) == ("m", 7, len(found.prefix))
    assert found.prefix == b'{"role":"user","content":"hi"}'
    assert parse_body(b'{"prompt":"abc","max_completion_tokens":5,"max_tokens":9}').max_output_tokens == 5
    assert parse_body(b'{"prompt":["ab","c"]}').prefix == b"abc"
    assert parse_body(b'{"prompt":[1,2,3]}').prompt_bytes == 3
    assert parse_body(b'{"instructions":"be","input":[{"role":"user"}]}').prefix == b'be{"role":"user"}'


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff", b'{"model":3,"messages":4}', b"[" * 300_000])
def test_a_body_that_is_not_understood_has_its_size_alone(body):
    found = parse_body(body)
    assert (found.model, found.prefix if len(body) < 20 and b"messages" not in body else b"") == ("", b"")


@pytest.mark.parametrize("limit", [b"-1", b"0", b"true", b'"x"', b"1.5", b"null"])
def test_a_limit_out_of_range_counts_as_none(limit):
    assert parse_body(b'{"max_tokens":%s}' % limit).max_output_tokens == 4_096
    assert parse_body(b'{"max_tokens":99999999999}').max_output_tokens == MAX_OUTPUT_TOKENS


def test_prompts_with_a_common_beginning_have_common_hashes():
    shared = b"x" * 640
    first, second = prefix_hashes(shared + b"a" * 640, "m"), prefix_hashes(shared + b"b" * 640, "m")
    assert [one == other for one, other in zip(first, second, strict=True)] == [True] * 10 + [False] * 8
    assert prefix_hashes(shared, "other")[0] != first[0]
    assert prefix_hashes(b"x" * 63, "m") == ()
    assert len(prefix_hashes(b"x" * (1 << 16), "m")) == 64


def test_the_caller_is_read_from_the_headers_that_are_configured():
    callers = CallerHeaders(tenant="x-team", weights={"a": 2.0})
    found = callers.read({"x-team": "a", "x-penstock-priority": "Interactive", "x-request-timeout-ms": "1500"})
    assert found == ("a", Priority.PRIORITY_INTERACTIVE, 2.0, 1.5)
    wrong = callers.read({"x-penstock-priority": "first", "x-request-timeout-ms": "nan"})
    assert wrong == ("", Priority.PRIORITY_STANDARD, 1.0, 0.0)


METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a/b"} 3.0
vllm:num_requests_running{engine="1",model_name="a/b"} 4.0
vllm:num_requests_waiting{engine="0",model_name="a/b"} 1.0
vllm:num_requests_waiting{engine="1",model_name="a/b"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="a/b"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a/b"} 0.5
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100",x="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="100",x="None"} 1.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 9.0
"""


def test_the_load_is_the_sum_over_the_engines():
    assert parse_load(METRICS) == EndpointLoad(1, 7, 0.5, 3_200, frozenset({"a/b"}))
    former = METRICS.replace("kv_cache_usage", "gpu_cache_usage").replace(
        'num_gpu_blocks="100"', 'num_gpu_blocks="None"'
    )
    assert parse_load(former) == EndpointLoad(1, 7, 0.5, 0, frozenset({"a/b"}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not metrics",
        METRICS.replace("num_requests_running", "other"),
        METRICS.replace("} 3.0", "} NaN"),
        METRICS.replace("} 3.0", "} -1"),
        METRICS.replace("} 3.0", "} x"),
    ],
)
def test_metrics_without_a_load_are_an_error(text):
    with pytest.raises(LoadUnreadable):
        parse_load(text)


def test_endpoints_are_addresses_and_names():
    text = "10.0.0.1:8000, [::1]:8000 # first\n\ndns:///servers:8000"
    assert parse_endpoints(text) == ("10.0.0.1:8000", "[::1]:8000", "dns:///servers:8000")
    for wrong in ("10.0.0.1", "name:8000", "10.0.0.1:x", "dns:///name"):
        with pytest.raises(EndpointInvalid):
            parse_endpoints(wrong)


def test_a_file_is_read_again_and_a_name_keeps_its_last_addresses(tmp_path):
    file = tmp_path / "servers"
    file.write_text("10.0.0.1:8000\ndns:///servers:8000")
    answers = [["10.0.0.2:8000"], OSError("no resolver")]

    async def lookup(item):
        if not item.startswith("dns:"):
            return [item]
        if isinstance(answers[0], OSError):
            raise answers[0]
        return answers.pop(0)

    discovery = EndpointDiscovery(f"file://{file}", lookup)
    assert asyncio.run(discovery.poll()) == {"10.0.0.1:8000", "10.0.0.2:8000"}
    file.write_text("dns:///servers:8000")
    assert asyncio.run(discovery.poll()) == {"10.0.0.2:8000"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoints", ""),
        ("endpoints", "host:1"),
        ("slots", 0),
        ("max_wait", 0.0),
        ("fallbacks", -1),
        ("max_kv_usage", 1.5),
        ("default_class", "first"),
        ("tenant_weights", ("a",)),
        ("tenant_weights", ("a=0",)),
    ],
)
def test_settings_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        PickerConfig(**{field: value})
