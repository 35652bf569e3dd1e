"""JWTs at a real auth: keys from a server on loopback or a file, rotation, stale keys, tenants and models."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from auth_server import auth_process, edge, rejection_of, tenant_use, tenant_with_key, wait_for_figure
from penstock.auth.oidc import refresh
from penstock.auth.oidc.key_set import MAX_BYTES
from penstock.mesh.v1.admission_pb2 import Credential, FallbackAdmission
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE
from tokens import AUDIENCE, ISSUER, NOW, claims_of, jwk, key_set_of, signed

MINUTE_S = 60.0


class KeyServer:
    """An HTTP server on loopback with the key set of an issuer."""

    def __init__(self, *keys):
        self.document = key_set_of(*keys)
        self.head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        self.requests = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            await self.may_answer.wait()
            writer.write(f"{self.head}content-length: {len(self.document)}\r\nconnection: close\r\n\r\n".encode())
            writer.write(self.document)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self):
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        async with server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
            yield self


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


@asynccontextmanager
async def accepting(tmp_path, jwks, *, issuer=None, **settings):
    path = tmp_path / "issuers.json"
    entry = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": str(jwks), "tenant_claim": "tenant"}
    path.write_text(json.dumps([entry | (issuer or {})]))
    async with auth_process(clock=Clock(), issuers=str(path), **settings) as found, edge(found) as stream:
        await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme")))
        yield found, stream


def bearer(token) -> Credential:
    return Credential(bearer=token)


async def reload(found):
    """Let the regular load happen now."""
    await found.tokens.load_all()


async def test_a_token_is_identified_reserved_and_charged_to_its_tenant(tmp_path):
    async with KeyServer(jwk()).running() as keys, accepting(tmp_path, keys.url) as (found, stream):
        admitted = await stream.reserve(credential=bearer(signed()))
        assert (admitted.identity.tenant_id, admitted.identity.key_id) == ("acme", "oidc/acme/anna")
        await stream.settle(admitted.reservation_id, 10, 7)
        used = await tenant_use(found, "acme")
        assert (used.prompt_tokens, used.output_tokens) == (10, 7)
        assert keys.requests == 1


async def test_keys_and_tokens_of_a_tenant_share_its_limits(tmp_path):
    async with KeyServer(jwk()).running() as keys, accepting(tmp_path, keys.url) as (found, stream):
        key = await tenant_with_key(found, tokens_per_minute=60)
        await stream.reserve("request-1", 10, 30, credential=key)
        rejected = await stream.reserve("request-2", 10, 20, credential=bearer(signed()))
        assert rejection_of(rejected).reason == "QUOTA_EXCEEDED"
        assert (await stream.reserve("request-3", 5, 15, credential=bearer(signed()))).reservation_id
        rejected = await stream.reserve("request-4", 1, 1, credential=key)
        assert rejection_of(rejected).reason == "QUOTA_EXCEEDED"


async def test_a_token_has_at_most_the_class_of_its_tenant(tmp_path):
    claims = {"class_claim": "class"}
    async with (
        KeyServer(jwk()).running() as keys,
        accepting(tmp_path, keys.url, issuer=claims) as (found, stream),
    ):
        for given, expected in (("batch", PRIORITY_BATCH), ("interactive", 2)):
            admitted = await stream.identify(bearer(signed(claims_of(**{"class": given}))))
            assert admitted.identity.priority == expected
        tenant = pb.Tenant(tenant_id="acme", priority=PRIORITY_INTERACTIVE)
        await found.admin.PutTenant(pb.PutTenantRequest(tenant=tenant))
        admitted = await stream.identify(bearer(signed(claims_of(**{"class": "interactive"}))))
        assert admitted.identity.priority == PRIORITY_INTERACTIVE


async def test_a_token_of_an_unknown_tenant_or_for_another_model_is_refused(tmp_path):
    claims = {"models_claim": "models"}
    async with (
        KeyServer(jwk()).running() as keys,
        accepting(tmp_path, keys.url, issuer=claims) as (_, stream),
    ):
        rejected = await stream.identify(bearer(signed(claims_of(tenant="blue"))))
        assert rejection_of(rejected).reason == "TENANT_UNKNOWN"
        allowed = await stream.reserve("request-1", credential=bearer(signed(claims_of(models=["m", "n"]))), model="m")
        assert allowed.reservation_id
        for models in (["n"], [], None):
            credential = bearer(signed(claims_of(models=models)))
            rejected = await stream.reserve("request-2", credential=credential, model="m")
            assert rejection_of(rejected).reason == "MODEL_FORBIDDEN"


async def test_a_batch_of_a_token_goes_on_after_its_expiry_for_its_models_while_its_tenant_exists(tmp_path):
    async with (
        KeyServer(jwk()).running() as keys,
        accepting(tmp_path, keys.url, issuer={"models_claim": "models"}) as (found, stream),
    ):
        delegated = await stream.delegate(bearer(signed(claims_of(models=["m"], exp=NOW + 5))))
        found.clock.now += 3 * MINUTE_S
        admitted = await stream.reserve(credential=delegated, model="m")
        assert (admitted.identity.tenant_id, admitted.identity.key_id) == ("acme", "oidc/acme/anna")
        await stream.settle(admitted.reservation_id, tenant_id="acme")
        assert rejection_of(await stream.reserve(credential=delegated, model="n")).reason == "MODEL_FORBIDDEN"
        many = bearer(signed(claims_of(models=[f"model-{number}" for number in range(60)], exp=NOW + 500)))
        assert rejection_of(await stream.identify(many, delegates=True)).reason == "DELEGATION_REFUSED"
        await found.admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id="acme"))
        assert rejection_of(await stream.reserve(credential=delegated)).reason == "TENANT_UNKNOWN"


async def test_a_token_that_expires_while_its_request_runs_is_charged_like_any(tmp_path):
    async with KeyServer(jwk()).running() as keys, accepting(tmp_path, keys.url) as (found, stream):
        token = signed(claims_of(exp=NOW + 5))
        admitted = await stream.reserve(credential=bearer(token))
        found.clock.now += 3 * MINUTE_S
        rejected = await stream.identify(bearer(token))
        assert rejection_of(rejected).reason == "TOKEN_EXPIRED"
        assert (await stream.settle(admitted.reservation_id)).reservation_id
        assert (await tenant_use(found, "acme")).output_tokens == 7


async def test_keys_are_rotated_without_a_failed_call(tmp_path):
    """The issuer signs with a new key before auth has loaded it: the call waits for the load."""
    async with KeyServer(jwk()).running() as keys, accepting(tmp_path, keys.url) as (found, stream):
        for number in range(2, 6):
            found.clock.now += MINUTE_S
            keys.document = key_set_of(
                jwk(kid=f"key-{number - 1}", number=number - 1), jwk(kid=f"key-{number}", number=number)
            )
            claims = claims_of(exp=found.clock.now + 300, sub=f"user-{number}")
            new = signed(claims, kid=f"key-{number}", number=number)
            answers = await asyncio.gather(
                stream.identify(bearer(new)),
                found.check(new),
                found.check(new, content_type="application/grpc"),
            )
            assert answers[0].identity.key_id == f"oidc/acme/user-{number}"
            assert [each.status_code for each in answers[1:]] == [200, 200]
            admitted = await stream.reserve(f"request-{number}", credential=bearer(new))
            assert admitted.reservation_id
        assert keys.requests == 5


async def test_a_withdrawn_key_is_refused_after_the_next_load(tmp_path):
    both = KeyServer(jwk(), jwk(kid="key-2", number=2))
    async with both.running() as keys, accepting(tmp_path, keys.url) as (found, stream):
        token = signed(kid="key-2", number=2)
        assert (await stream.identify(bearer(token))).identity.tenant_id == "acme"
        keys.document = key_set_of(jwk())
        await reload(found)
        assert rejection_of(await stream.identify(bearer(token))).reason == "TOKEN_INVALID"
        assert (await stream.identify(bearer(signed()))).identity.tenant_id == "acme"


async def test_keys_that_cannot_be_loaded_are_used_until_they_are_too_old(tmp_path):
    async with KeyServer(jwk()).running() as keys, accepting(tmp_path, keys.url, jwks_max_age=600.0) as (found, stream):
        token = signed(claims_of(exp=NOW + 7_200))
        keys.head = "HTTP/1.1 500 Internal Server Error\r\n"
        found.clock.now += 590.0
        await reload(found)
        assert (await stream.identify(bearer(token))).identity.tenant_id == "acme"
        found.clock.now += 20.0
        error = rejection_of(await stream.identify(bearer(token)))
        assert (error.reason, error.retry_after) == ("ISSUER_UNAVAILABLE", 1.0)
        assert (await found.check(token)).status_code == 503
        assert found.tokens.figures == {"key_set_loads": 1, "key_set_failures": 1, "key_sets_stale": 1}
        keys.head = "HTTP/1.1 200 OK\r\n"
        await reload(found)
        assert (await stream.identify(bearer(token))).identity.tenant_id == "acme"


@pytest.mark.parametrize("answer", ["a redirect", "too large", "not a key set", "nothing"])
async def test_a_wrong_answer_of_the_key_server_accepts_nothing(tmp_path, monkeypatch, answer):
    monkeypatch.setattr(refresh, "FETCH_TIMEOUT_S", 0.1)
    async with KeyServer(jwk()).running() as target, KeyServer(jwk()).running() as keys:
        if answer == "a redirect":
            keys.head = f"HTTP/1.1 302 Found\r\nlocation: {target.url}\r\n"
        elif answer == "too large":
            keys.document += b" " * MAX_BYTES
        elif answer == "not a key set":
            keys.document = b"<html>"
        else:
            keys.may_answer.clear()
        async with accepting(tmp_path, keys.url) as (found, stream):
            assert rejection_of(await stream.identify(bearer(signed()))).reason == "ISSUER_UNAVAILABLE"
            assert target.requests == 0
            assert found.tokens.failures == 1
            keys.may_answer.set()


async def test_keys_of_a_file_are_loaded_again(tmp_path):
    path = tmp_path / "keys.json"
    path.write_bytes(key_set_of(jwk()))
    async with accepting(tmp_path, path) as (found, stream):
        assert (await stream.identify(bearer(signed()))).identity.tenant_id == "acme"
        path.write_bytes(key_set_of(jwk(kid="key-2", number=2)))
        await reload(found)
        assert rejection_of(await stream.identify(bearer(signed()))).reason == "TOKEN_INVALID"
        assert (await stream.identify(bearer(signed(kid="key-2", number=2)))).identity.tenant_id == "acme"


async def test_unknown_key_ids_load_the_keys_once_per_interval_and_count_as_failures(tmp_path):
    async with KeyServer(jwk()).running() as keys, accepting(tmp_path, keys.url) as (found, stream):
        reasons = set()
        for number in range(30):
            credential = Credential(bearer=signed(kid=f"unknown-{number}", number=99), source="192.0.2.9")
            reasons.add(rejection_of(await stream.identify(credential)).reason)
        assert reasons == {"TOKEN_INVALID"}
        assert keys.requests == 2
        await wait_for_figure(found, "failed_authentications", 30)


async def test_a_fallback_admission_of_a_token_is_recorded_for_its_tenant(tmp_path):
    async with KeyServer(jwk()).running() as keys, accepting(tmp_path, keys.url) as (found, stream):
        admitted = await stream.reserve(credential=bearer(signed()))
        key_id, grant = admitted.identity.key_id, admitted.fallback_grant
        admission = FallbackAdmission(key_id=key_id, grant=grant)
        recorded = await stream.reserve("request-2", credential=None, fallback_admission=admission)
        await stream.settle(recorded.reservation_id, 10, 20)
        assert (await tenant_use(found, "acme")).output_tokens == 20
        forged = FallbackAdmission(key_id="oidc/acme/eve", grant=grant)
        rejected = await stream.reserve("request-3", credential=None, fallback_admission=forged)
        assert rejection_of(rejected).reason == "GRANT_INVALID"
