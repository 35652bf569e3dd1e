"""Commands of kubectl in documents, checked without a cluster: by kubectl itself, and against the rendered manifests.

kubectl parses its flags before it connects, and makes Secrets without a server. Names of objects, containers, ports,
paths and Secrets must be those of an overlay.
"""

import importlib.util
import re
import shlex
import subprocess
from functools import cache

import yaml

from command_line import parse_penstock
from manifest_check.command import kubectl
from manifest_check.objects import Manifests, Workload
from manifests import OVERLAYS, render_overlay
from paths import REPO

NAMESPACE = "penstock"
NO_SERVER = "http://127.0.0.1:9"  # the port of `discard`
KINDS = {
    "certificates": "Certificate",
    "deployment": "Deployment",
    "persistentvolumeclaim": "PersistentVolumeClaim",
    "pod": "Pod",
    "pods": "Pod",
    "secret": "Secret",
    "service": "Service",
    "statefulset": "StatefulSet",
}
MADE_PODS = {"auth-restore"}  # by a former command: a copy of the pod auth-0
FLAGS_WITH_VALUE = re.compile(r"--(?!now|previous|force|same-node|stdin|tty|watch)[a-z-]+")
OF_NODES = {"drain", "uncordon"}
PROGRAMS = {"df", "ls", "rm", "sleep"}  # of the base image
ADDRESS = re.compile(r"(?:dns:///)?([a-z]+):(\d+)")


class CommandFault(Exception):
    """The command would fail or do nothing in a cluster with the manifests."""


@cache
def overlays():
    """Return overlays that together have every component that documents name. Rendering one takes about a second."""
    return [Manifests(render_overlay(OVERLAYS / each)) for each in ("local", "autoscaled", "gpu")]


def check_command(text):
    """Check one line, of which pipes and redirections are cut off. Raises CommandFault."""
    words = shlex.split(re.sub(r"\$\([^)]*\)", "x", re.split(r" [|>] ", text)[0]), comments=True)
    if words[0] == "curl":
        return
    if words[0] != "kubectl":
        raise CommandFault(f"{words[0]} is no command for a cluster")
    own, _, inner = _split(words[1:])
    _check_by_kubectl(words[1:])
    positional, flags = _parse(own)
    verb = positional[0]
    if verb in OF_NODES:
        return
    if verb in ("apply", "diff"):
        _check_applied(flags)
        return
    if flags.get("--namespace") != NAMESPACE and verb != "cp":
        raise CommandFault(f"names no namespace {NAMESPACE}")
    if verb == "create":
        return  # the Secret that kubectl made was checked
    target = _check_objects(verb, positional[1:], flags)
    if inner:
        _check_inner(inner, target, flags)


def _split(words):
    if "--" not in words:
        return words, "", []
    end = words.index("--")
    return words[:end], "--", words[end + 1 :]


def _parse(words):
    """Return positional arguments, and long flags with their values; -it has none."""
    positional, flags, rest = [], {}, list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            positional.append(word)
        elif FLAGS_WITH_VALUE.fullmatch(word):
            flags[word] = rest.pop(0)
    return positional, flags


def _check_by_kubectl(words):
    """Let kubectl parse the command. It makes Secrets; all else fails as no server answers."""
    is_secret = words[:2] == ["create", "secret"]
    more = ("--dry-run=client", "--output=yaml") if is_secret and "tls" not in words else ()
    command = [kubectl(), f"--server={NO_SERVER}", "--request-timeout=1s", *words[:1]]
    done = subprocess.run(
        [*command, *more, *words[1:]], cwd=REPO, capture_output=True, text=True, check=False, timeout=30
    )
    files_are_missing = "in local filesystem" in done.stderr or "no such file" in done.stderr
    if not (done.returncode == 0 or "refused" in done.stderr or files_are_missing):
        raise CommandFault(done.stderr.strip())
    if is_secret:
        _check_secret(words, yaml.safe_load(done.stdout) if done.returncode == 0 and more else {})


def _check_secret(words, made):
    """A pod of some overlay reads the Secret, and each of its keys."""
    name = words[3]
    keys = set(made.get("data") or ())
    read = [_keys_read(each, name) for each in overlays()]
    if not any(found is not None and (not found or keys <= found) for found in read):
        raise CommandFault(f"no pod reads {', '.join(sorted(keys)) or 'anything'} of the Secret {name}")


def _keys_read(manifests, name):
    """Return the keys of a Secret that pods read; empty: all, as files. None if they read none."""
    keys, found = set(), False
    for workload in manifests.workloads:
        for volume in workload.volumes.values():
            found |= (volume.get("secret") or {}).get("secretName") == name
        for container in workload.all_containers:
            sources = [
                (each.get("valueFrom") or {}).get("secretKeyRef") or {} for each in container.spec.get("env") or ()
            ]
            keys |= {each["key"] for each in sources if each.get("name") == name}
    return set() if found else keys or None


def _check_applied(flags):
    if folder := flags.get("--kustomize"):
        render_overlay(REPO / folder)
    elif not (REPO / flags["--filename"]).is_file():
        raise CommandFault(f"there is no {flags['--filename']}")


def _check_objects(verb, names, flags):
    """Check the objects that a command names. Returns the first workload, whose pods it means."""
    if verb == "rollout":
        names = names[1:]
    if verb == "cp":
        pods = [each.partition(":")[0].removeprefix(f"{NAMESPACE}/") for each in names if ":" in each]
        return _find("Pod", pods[0])
    if selector := flags.get("--selector"):
        labels = dict(each.split("=") for each in selector.split(","))
        if not any(labels.items() <= workload.labels.items() for each in overlays() for workload in each.workloads):
            raise CommandFault(f"no pod has the labels {selector}")
    if not names:
        return None
    kind, slash, name = names[0].partition("/")
    if not slash and kind in KINDS and verb != "debug":
        name = names[1] if len(names) > 1 else ""
    elif not slash:
        kind, name = "pod", names[0]
    if kind not in KINDS:
        raise CommandFault(f"{kind} is no kind that documents name")
    found = _find(KINDS[kind], name) if name else None
    if verb == "port-forward":
        _check_port(KINDS[kind], name, names[1])
    return found


def _find(kind, name):
    """Return the workload of an object, or None for other kinds. Raises CommandFault if no overlay has the object."""
    if kind == "Pod":
        if of_deployment := re.fullmatch(r"(.+)-[a-z0-9]{9,10}-[a-z0-9]{5}", name):
            return _find("Deployment", of_deployment[1])
        return _find("StatefulSet", "auth" if name in MADE_PODS else name.rpartition("-")[0])
    for each in overlays():
        if kind == "Secret" and (_keys_read(each, name) is not None or name in _made_secrets(each)):
            return None
        if found := each.find(kind, name):
            return Workload(found) if kind in ("Deployment", "StatefulSet") else None
    raise CommandFault(f"no overlay has {kind} {name}")


def _made_secrets(manifests):
    return {each["spec"]["secretName"] for each in manifests.of_kind("Certificate")}


def _check_port(kind, name, mapping):
    port = int(mapping.rpartition(":")[2])
    if kind == "Service":
        ports = {each["port"] for found in overlays() for each in found.find(kind, name)["spec"]["ports"]}
        if port not in ports:
            raise CommandFault(f"Service {name} has no port {port}")


def _check_inner(words, workload, flags):
    """Check a command in a pod: the container exists, and has the program and the paths."""
    containers = {each.name: each for each in workload.containers}
    name = flags.get("--container", workload.name)
    if name not in containers:
        raise CommandFault(f"{workload.title} has no container {name}")
    program, *arguments = words
    if program == "penstock":
        if not str(containers[name].spec["image"]).startswith(("penstock-ops", "images.example.com/penstock-ops")):
            raise CommandFault(f"{workload.title} has no command penstock")
        parse_penstock(arguments)
        for each in arguments:
            if match := ADDRESS.fullmatch(each):
                _check_address(match[1], int(match[2]))
    elif program == "python":
        if importlib.util.find_spec(arguments[1]) is None:
            raise CommandFault(f"there is no module {arguments[1]}")
    elif program not in PROGRAMS:
        raise CommandFault(f"{program} is no program of the image")
    mounts = tuple(containers[name].mounts)
    for each in arguments:
        if each.startswith("/") and not each.startswith(mounts):
            raise CommandFault(f"{each} is on no volume")


def _check_address(service, port):
    """Pods behind a headless Service are reached at all of their ports, others at those of the Service."""
    manifests = overlays()[0]
    found = manifests.find("Service", service)
    if found is None:
        raise CommandFault(f"there is no Service {service}")
    if found["spec"].get("clusterIP") != "None":
        ports = {each["port"] for each in found["spec"]["ports"]}
    else:
        pods = manifests.selected({"matchLabels": found["spec"]["selector"]})
        ports = {number for each in pods for number in each.ports.values()}
    if port not in ports:
        raise CommandFault(f"Service {service} leads to no port {port}")
