import json

import pytest

from penstock.chassis import errors
from penstock.edge.api.openai.body.fields import BodyTooLarge
from penstock.edge.api.openai.errors import http_error
from penstock.edge.api.openai.models import model_object

CASES = [
    (errors.InvalidArgument("m"), 400, "invalid_request_error", "invalid_argument"),
    (errors.InvalidArgument("m", reason="PROMPT_TOO_LONG"), 400, "invalid_request_error", "context_length_exceeded"),
    (errors.FailedPrecondition("m"), 400, "invalid_request_error", "failed_precondition"),
    (errors.Unauthenticated("m", reason="KEY_UNKNOWN"), 401, "authentication_error", "invalid_api_key"),
    (errors.PermissionDenied("m"), 403, "permission_error", "permission_denied"),
    (errors.NotFound("m", reason="MODEL_UNKNOWN"), 404, "invalid_request_error", "model_not_found"),
    (errors.AlreadyExists("m"), 409, "invalid_request_error", "already_exists"),
    (BodyTooLarge("m"), 413, "invalid_request_error", "body_too_large"),
    (errors.QuotaExceeded("m", retry_after=2.5), 429, "rate_limit_error", "rate_limit_exceeded"),
    (errors.Overloaded("m", reason="FILES_FULL", retry_after=60.0), 429, "rate_limit_error", "files_full"),
    (errors.Cancelled("m"), 499, "invalid_request_error", "cancelled"),
    (errors.Internal("m"), 500, "server_error", "internal"),
    (errors.Unimplemented("m"), 501, "server_error", "unimplemented"),
    (errors.Overloaded("m", retry_after=0.2), 503, "service_unavailable_error", "overloaded"),
    (errors.Overloaded("m", reason="QUEUE_FULL", retry_after=0.2), 503, "service_unavailable_error", "queue_full"),
    (errors.Unavailable("m", reason="DRAINING", retry_after=1.0), 503, "service_unavailable_error", "draining"),
    (errors.Aborted("m", reason="ATTEMPTS_EXHAUSTED"), 503, "service_unavailable_error", "attempts_exhausted"),
    (errors.DeadlineExceeded("m"), 504, "timeout_error", "deadline"),
]


@pytest.mark.parametrize(("error", "status", "kind", "code"), CASES)
def test_every_error_has_its_status_and_the_api_s_body(error, status, kind, code):
    answer = http_error(error)
    assert answer.status == status
    assert json.loads(answer.body) == {"error": {"message": "m", "type": kind, "code": code, "param": None}}
    assert answer.headers["x-penstock-reason"] == error.reason


def test_every_error_type_of_the_chassis_is_mapped():
    covered = {type(error) for error, *_ in CASES} | {BodyTooLarge}
    assert set(errors.PenstockError.__subclasses__()) <= covered


def test_the_wrong_field_is_the_param():
    answer = http_error(errors.InvalidArgument("top_p is 7", field="top_p"))
    assert json.loads(answer.body)["error"]["param"] == "top_p"


def test_an_overload_names_the_time_to_retry_in_both_units():
    headers = http_error(errors.Overloaded("m", retry_after=1.2501)).headers
    assert (headers["retry-after"], headers["retry-after-ms"], headers["x-should-retry"]) == ("2", "1251", "true")
    assert http_error(errors.QuotaExceeded("m", retry_after=0.0)).headers["retry-after"] == "1"


def test_an_error_that_a_retry_cannot_resolve_forbids_retries():
    headers = http_error(errors.Internal("m")).headers
    assert headers["x-should-retry"] == "false"
    assert not {"retry-after", "retry-after-ms"} & set(headers)


def test_a_missing_key_names_its_scheme():
    assert http_error(errors.Unauthenticated("m")).headers["www-authenticate"] == "Bearer"
    assert "www-authenticate" not in http_error(errors.PermissionDenied("m")).headers


def test_an_unknown_model_is_not_found():
    with pytest.raises(errors.NotFound) as missing:
        model_object([], "gpt-9", created=1)
    assert http_error(missing.value).status == 404
    assert "'gpt-9'" in missing.value.message
