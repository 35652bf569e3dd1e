"""Routes of a real auth at a real edge, before, during and after an outage of auth."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from edge_auth_mesh import KEY, edge_auth_mesh
from edge_mesh import TIMEOUT_S, text_of
from penstock.auth.models.routes import Route, RouteDefinition, RouteTarget
from penstock.auth.store.store import PutRoute
from penstock.chassis.errors import NotFound
from penstock.client import Client
from penstock.client.retries import RetryPolicy
from store_changes import kept

TOKENS = 5
TO_TINY = Route("gpt-4o", "default", 1, RouteDefinition((RouteTarget("tiny", 1),)))


async def answer(client):
    async with client.generate("hi", model="gpt-4o", max_output_tokens=TOKENS) as found:
        return await found.read()


async def test_a_route_is_served_during_an_outage_of_auth_and_charged_as_its_target(tmp_path):
    async with edge_auth_mesh(tmp_path, auth_fallback_after=0.05) as mesh:
        client = Client(*mesh.addresses, api_key=KEY, retries=RetryPolicy(max_attempts=1))
        async with client:
            with pytest.raises(NotFound):
                await answer(client)
            await kept(mesh.auth.service._store, PutRoute(TO_TINY))
            mesh.auth.routes.put(TO_TINY)
            await mesh.wait_for_figure("routes", 1)
            assert await answer(client) == text_of(TOKENS)
            await mesh.wait_for_figure("reservations_open", 0)
            await mesh.auth.stop()
            await mesh.wait_for_figure("auth_unreachable", 1)
            assert await answer(client) == text_of(TOKENS)
            await mesh.auth.start()
            assert mesh.auth.routes.all == [TO_TINY]
            await mesh.wait_for_figure("deferred_reservations", 0)
            await mesh.wait_for_figure("reservations_open", 0)
            mesh.auth.routes.delete("gpt-4o", "default")
            await mesh.wait_for_figure("routes", 0)
            with pytest.raises(NotFound):
                await answer(client)
        async with asyncio.timeout(TIMEOUT_S):
            await mesh.wait_settled()
        with closing(sqlite3.connect(mesh.auth.path)) as file:
            assert file.execute("SELECT model, output_tokens FROM ledger").fetchall() == [("tiny", TOKENS)] * 2
