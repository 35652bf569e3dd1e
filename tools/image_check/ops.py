"""Runs the commands of the `ops` image against a mesh, each as a process of its own."""

import subprocess
from collections.abc import Iterable, Mapping

from image_check.mesh import KEY, Launch

_LIMIT = 120.0  # s; for one command

# Arguments of `penstock`, and where they are to find the mesh. Together they import the code of every command.
COMMANDS = (
    "--help",
    f"generate Hello --target {{edge}} --key {KEY} --max-tokens 4",
    f"bench --target {{edge}} --key {KEY} --requests 4 --prompt-tokens 16 --output-tokens 4",
    "keys create --target {auth_admin}",
    "tenants list --target {auth_admin}",
    "top --once --target {queue_admin}",
    "snapshot scheduler --target {scheduler_admin}",
    "config worker",
    "faults --seeds 1 --processes 1",
    "drain worker --target {worker_admin}",
)


def failed_commands(launch: Launch, addresses: Mapping[str, str], commands: Iterable[str] = COMMANDS) -> list[str]:
    """Return a text for each command that did not end with 0: the command and the end of its output."""
    failures = []
    for each in commands:
        command = [*launch.command, *each.format_map(addresses).split()]
        done = subprocess.run(
            command,
            cwd=launch.folder,
            env=launch.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
        if done.returncode:
            failures.append(f"penstock {each} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return failures
