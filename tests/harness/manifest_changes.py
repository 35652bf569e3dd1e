"""Changes of rendered manifests, which tests make to plant a fault or to add an object."""

from manifest_check.objects import Workload

POD_PATH = ("spec", "template", "spec")
CONTAINER_PATH = (*POD_PATH, "containers", 0)


def set_in(path, value):
    """A change that sets the value at a path of an object."""

    def apply(thing):
        *parents, last = path
        for key in parents:
            thing = thing[key]
        thing[last] = value

    return apply


def remove_in(path):
    def apply(thing):
        *parents, last = path
        for key in parents:
            thing = thing[key]
        del thing[last]

    return apply


def set_variable(name, value):
    def apply(workload):
        variables = Workload(workload).processes[0].spec["env"]
        variables[:] = [each for each in variables if each["name"] != name]
        variables.append({"name": name, "value": value})

    return apply


def rename_variable(name, new):
    def apply(workload):
        (variable,) = [each for each in Workload(workload).processes[0].spec["env"] if each["name"] == name]
        variable["name"] = new

    return apply


def add_volume(name, source, path):
    """A change that adds a volume to a workload and mounts it in the process of the tier."""

    def apply(workload):
        workload["spec"]["template"]["spec"]["volumes"].append({"name": name, **source})
        Workload(workload).processes[0].spec["volumeMounts"].append({"name": name, "mountPath": path})

    return apply


def autoscalers():
    """A HorizontalPodAutoscaler of edges by CPU and a ScaledObject of workers by an external scaler."""
    return [
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "edge", "namespace": "penstock"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "edge"},
                "minReplicas": 2,
                "maxReplicas": 10,
                "metrics": [
                    {
                        "type": "Resource",
                        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
                    }
                ],
            },
        },
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "worker", "namespace": "penstock"},
            "spec": {
                "scaleTargetRef": {"name": "worker"},
                "minReplicaCount": 0,
                "maxReplicaCount": 8,
                "triggers": [{"type": "external", "metadata": {"scalerAddress": "scheduler.penstock:7004"}}],
            },
        },
    ]
