"""The commands that the documents show for a cluster: kubectl accepts them, and the manifests have what they name."""

import click
import pytest

from cluster_commands import CommandFault, check_command
from documents import blocks, commands

COMMANDS = [command for block in blocks("console") if block.place == "cluster" for command in commands(block)]
INSIDE = "kubectl exec --namespace penstock deployment/operator -- penstock"


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_for_a_cluster_fits_the_manifests(command):
    check_command(command.text)


@pytest.mark.parametrize(
    "text",
    [
        "kubectl get pods",
        "kubectl get pods --namespace other",
        "kubectl get pods --namespace penstock --selector app.kubernetes.io/component=front",
        "kubectl logs --namespace penstock --former deployment/queue",
        "kubectl logs --namespace penstock deployment/auth-store",
        "kubectl exec --namespace penstock deployment/queue -- penstock keys list",
        "kubectl exec --namespace penstock auth-0 -- sqlite3 /var/lib/penstock/auth.sqlite",
        "kubectl exec --namespace penstock auth-0 -- ls /data",
        "kubectl exec --namespace penstock auth-0 -- python -m penstock.auth.copy",
        "kubectl exec --namespace penstock auth-0 --container store -- ls /tmp",
        f"{INSIDE} snapshot queue --target queue:9999",
        f"{INSIDE} snapshot queue --target shard:7009",
        "kubectl port-forward --namespace penstock service/envoy 8443:8080",
        "kubectl create secret generic door --namespace penstock --from-literal token=1",
        "kubectl create secret generic penstock-operators --namespace penstock --from-literal key=1",
        "kubectl apply --filename deploy/k8s/base/names.yaml",
        "kubectl rollout begin --namespace penstock deployment/edge",
        "helm install penstock",
    ],
)
def test_a_command_that_does_not_fit_is_found(text):
    with pytest.raises(CommandFault):
        check_command(text)


def test_a_command_line_that_does_not_parse_is_found():
    with pytest.raises(click.ClickException):
        check_command(f"{INSIDE} keys list --tenants acme")
