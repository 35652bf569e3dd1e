"""Deletion costs of worker pods: which are written, and the calls to the API server."""

from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from kubernetes_api import serving_api
from penstock.chassis.config import ConfigError
from penstock.chassis.kubernetes import KubernetesApi
from penstock.scheduler.autoscaling.pod_annotations import ANNOTATION, PodAnnotations
from penstock.scheduler.autoscaling.pod_costs import MAX_CHANGES, PodCosts, pod_of


def written(costs, leases_by_pod):
    changes = costs.changes(leases_by_pod)
    costs.on_written(changes, changes)
    return changes


@pytest.mark.parametrize("worker_id", ["worker.worker-5c-x", "worker-5c-x"])
def test_the_pod_of_a_worker_is_the_end_of_its_instance_id(worker_id):
    assert pod_of(worker_id) == "worker-5c-x"


def test_a_cost_is_written_at_first_and_once_it_is_far_from_the_written_one():
    costs = PodCosts()
    assert written(costs, {"a": 8, "b": 0}) == {"a": 8}, "a pod without a cost has the cost 0"
    assert written(costs, {"a": 5, "b": 0}) == {}
    assert written(costs, {"a": 16, "b": 1}) == {"b": 1, "a": 16}
    assert written(costs, {"a": 0, "b": 1}) == {"a": 0}, "an idle pod is the next to be deleted"


def test_a_pod_that_returns_with_the_same_name_is_written_again():
    costs = PodCosts()
    written(costs, {"a": 8})
    written(costs, {})
    assert written(costs, {"a": 8}) == {"a": 8}


def test_a_cost_that_was_not_written_is_due_again():
    costs = PodCosts()
    costs.on_written([], costs.changes({"a": 8}))
    assert costs.changes({"a": 8}) == {"a": 8}


def test_few_costs_are_written_at_once_and_those_of_idle_pods_first():
    costs = PodCosts()
    written(costs, {f"idle-{number}": 4 for number in range(3)})
    busy = {f"busy-{number}": 9 for number in range(2 * MAX_CHANGES)}
    changes = costs.changes(busy | {f"idle-{number}": 0 for number in range(3)})
    assert len(changes) == MAX_CHANGES
    assert list(changes)[:3] == ["idle-0", "idle-1", "idle-2"]


async def test_a_cost_is_an_annotation_of_the_pod(tmp_path):
    with serving_api(tmp_path) as server:
        server.add("pods/worker-a")
        annotations = PodAnnotations(server.api, lambda: {"worker-a": 3})
        await annotations.look()
        await annotations.look()
    assert server.patches == [("pods/worker-a", {"metadata": {"annotations": {ANNOTATION: "3"}}})]
    assert server.authorizations == {"Bearer secret"}


async def test_a_refusal_for_one_pod_does_not_stop_the_others(tmp_path):
    with serving_api(tmp_path) as server:
        server.add("pods/worker-a")
        server.refusals["forbidden"] = HTTPStatus.FORBIDDEN
        annotations = PodAnnotations(server.api, lambda: {"forbidden": 1, "gone": 2, "worker-a": 3})
        for _ in range(2):
            await annotations.look()
    pods = [path.rpartition("/")[2] for path, _ in server.patches]
    assert pods == ["forbidden", "gone", "worker-a", "forbidden"], "one that is gone is not tried again"


async def test_an_unreachable_server_is_called_once_a_look(tmp_path):
    with serving_api(tmp_path) as server:
        pass
    annotations = PodAnnotations(server.api, lambda: {"worker-a": 3, "worker-b": 3})
    for _ in range(2):
        with capture_logs() as lines:
            await annotations.look()
        assert [each["event"] for each in lines] == ["pod_cost_not_written"]


def test_a_scheduler_outside_of_kubernetes_cannot_write_costs(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="PENSTOCK_SCHEDULER_POD_DELETION_COSTS"):
        KubernetesApi.of_pod("PENSTOCK_SCHEDULER_POD_DELETION_COSTS", "pod-deletion-costs")
