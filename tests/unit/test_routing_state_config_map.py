"""Drains and weights in a ConfigMap: what replicas of routing read and write at an API server of Kubernetes."""

import json
from http import HTTPStatus

import pytest

from kubernetes_api import serving_api
from penstock.chassis.config import ConfigError, load
from penstock.routing.__main__ import state_place
from penstock.routing.config import RoutingConfig, config_map_name
from penstock.routing.regions.region_state import RegionState, RegionStateInvalid
from penstock.routing.regions.state_config_map import KEY, StateConfigMap
from penstock.routing.regions.state_store import MAX_ATTEMPTS, RegionStateStore

PATH = "configmaps/region-state"


@pytest.fixture
def server(tmp_path):
    with serving_api(tmp_path) as server:
        server.add(PATH)
        yield server


@pytest.fixture
def place(server):
    return StateConfigMap(server.api, "region-state")


async def test_a_drain_is_read_by_the_other_replicas_and_after_a_restart(server, place):
    store, other = await RegionStateStore.load(place), await RegionStateStore.load(place)
    assert store.state == RegionState()
    await store.change(lambda state: state.with_drained("eu"))
    assert (await other.poll()).drained == {"eu"}
    assert (await RegionStateStore.load(place)).state.drained == {"eu"}
    assert json.loads(server.objects[PATH]["data"][KEY])["drained"] == ["eu"]


async def test_of_two_changes_at_once_none_is_lost(server, place):
    store = await RegionStateStore.load(place)
    other = await RegionStateStore.load(place)
    seen = []

    def drained(state):
        """Another replica writes between the read and the write of the first attempt."""
        if not seen:
            change = {"metadata": {}, "data": {KEY: other.state.with_weight("us", 20).text()}}
            server.patch(PATH, change)
        seen.append(state)
        return state.with_drained("eu")

    state = await store.change(drained)
    assert (state.drained, state.weights, len(seen)) == ({"eu"}, {"us": 20}, 2)


async def test_a_change_that_others_always_precede_fails(server, place):
    store = await RegionStateStore.load(place)
    attempts = []

    def drained(state):
        attempts.append(state)
        server.patch(PATH, {"metadata": {}, "data": {KEY: RegionState(weights={"us": len(attempts)}).text()}})
        return state.with_drained("eu")

    with pytest.raises(OSError, match="has changed"):
        await store.change(drained)
    assert len(attempts) == MAX_ATTEMPTS


@pytest.mark.parametrize("status", [HTTPStatus.FORBIDDEN, HTTPStatus.INTERNAL_SERVER_ERROR])
async def test_a_server_that_refuses_keeps_the_last_state_and_takes_no_change(server, place, status):
    store = await RegionStateStore.load(place)
    await store.change(lambda state: state.with_drained("eu"))
    server.refusals["region-state"] = status
    before = len(server.patches)
    assert (await store.poll()).drained == {"eu"}
    with pytest.raises(OSError, match="cannot be read"):
        await store.change(lambda state: state.with_drained("us"))
    assert len(server.patches) == before


async def test_a_state_that_disappears_keeps_a_region_drained(server, place):
    store = await RegionStateStore.load(place)
    await store.change(lambda state: state.with_drained("eu"))
    del server.objects[PATH]["data"][KEY]
    assert (await store.poll()).drained == {"eu"}
    assert (await store.change(lambda state: state.with_weight("us", 5))).drained == {"eu"}
    del server.objects[PATH]
    assert (await store.poll()).drained == {"eu"}
    with pytest.raises(OSError, match="cannot be read"):
        await store.change(lambda state: state.with_drained("us"))


@pytest.mark.parametrize("found", [{}, {"metadata": []}, {"metadata": {"resourceVersion": "1"}, "data": []}])
async def test_an_answer_that_is_no_config_map_is_refused(server, place, found):
    server.objects[PATH] = found
    with pytest.raises(OSError, match="did not answer with a ConfigMap"):
        await RegionStateStore.load(place)


async def test_an_invalid_state_stops_the_start(server, place):
    server.add(PATH, data={KEY: "{"})
    with pytest.raises(RegionStateInvalid):
        await RegionStateStore.load(place)


def test_the_setting_names_a_file_or_a_config_map(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert str(state_place(str(tmp_path / "regions.json"))) == str(tmp_path / "regions.json")
    assert state_place("") is None
    with pytest.raises(ConfigError, match="PENSTOCK_ROUTING_REGIONS_STATE needs a pod"):
        state_place("configmap:region-state")
    assert config_map_name("configmap:region-state") == "region-state"
    variables = {"PENSTOCK_ROUTING_REGIONS": "us=us:1", "PENSTOCK_ROUTING_AUTHS": "auth:7007", "PENSTOCK_REGION": "eu"}
    for wrong in ("configmap:", "configmap:a/b", "configmap:A"):
        with pytest.raises(ConfigError, match="PENSTOCK_ROUTING_REGIONS_STATE must name a ConfigMap"):
            load(RoutingConfig, "routing", variables | {"PENSTOCK_ROUTING_REGIONS_STATE": wrong})
