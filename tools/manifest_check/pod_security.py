"""The profile `restricted` of Pod Security, and the limits of this repository beyond it."""

from collections.abc import Iterator

from manifest_check.objects import Container, Manifests, Object, Workload, title

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_ENFORCE = "pod-security.kubernetes.io/enforce"


def security_faults(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        yield from (f"{workload.title}: {text}" for text in _check_pod(workload))
    for namespace in manifests.of_kind("Namespace"):
        if (namespace["metadata"].get("labels") or {}).get(_ENFORCE) != "restricted":
            yield f"{title(namespace)}: does not enforce the profile restricted"


def _check_pod(workload: Workload) -> Iterator[str]:
    pod = workload.pod
    if pod.get("automountServiceAccountToken") is not False:
        yield "its pods carry a token they do not need"
    if pod.get("enableServiceLinks") is not False:
        yield "is given variables of other Services, which look like unknown settings"
    if any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        yield "uses namespaces of the node"
    for volume in workload.volumes.values():
        if strange := volume.keys() - _VOLUMES - {"name"}:
            yield f"volume {volume['name']} is of a kind that restricted pods may not have: {', '.join(strange)}"
    for container in workload.all_containers:
        yield from (f"{container.name}: {text}" for text in _check_container(container, pod))


def _check_container(container: Container, pod: Object) -> Iterator[str]:
    own = container.spec.get("securityContext") or {}
    context = {**(pod.get("securityContext") or {}), **own}
    if context.get("runAsNonRoot") is not True or context.get("runAsUser", 0) == 0:
        yield "may run as root"
    if (context.get("seccompProfile") or {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield "has no seccomp profile"
    if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
        yield "may gain privileges"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "may write to its image"
    capabilities = own.get("capabilities") or {}
    if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
        yield "keeps capabilities"
    if any(each.get("hostPort") for each in container.spec.get("ports") or []):
        yield "takes a port of the node"
