"""The API page lists every field of OpenAI's reference that is refused or ignored."""

import inspect
import re

import pytest
from openai import OpenAI

from paths import REPO
from penstock.edge.api.openai.body.unsupported import (
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_COMPLETIONS,
    UNSUPPORTED_IN_RESPONSES,
)

EDGE = REPO / "services" / "penstock" / "edge"
SECTION = re.search(r"^## What is refused\n(.*?)^## ", (REPO / "docs" / "api.md").read_text(), re.DOTALL | re.MULTILINE)
OF_TRANSPORT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
CLIENT = OpenAI(api_key="-", base_url="http://127.0.0.1")
ENDPOINTS = {
    "chat": CLIENT.chat.completions.create,
    "completions": CLIENT.completions.create,
    "responses": CLIENT.responses.create,
    "embeddings": CLIENT.embeddings.create,
}


def listed(endpoint):
    """Return the fields in rows of the section that concern an endpoint."""
    fields = set()
    for row in SECTION[1].splitlines():
        where, _, rest = row.removeprefix("| ").partition(" | ")
        if endpoint in where.split(", ") or where == "all":
            fields |= set(re.findall(r"`(\w+)[`.]", rest.partition(" | ")[0]))
    return fields


@pytest.mark.parametrize(
    ("endpoint", "unsupported"),
    [
        ("chat", UNSUPPORTED_IN_CHAT),
        ("completions", UNSUPPORTED_IN_COMPLETIONS),
        ("responses", UNSUPPORTED_IN_RESPONSES),
    ],
)
def test_every_field_that_is_refused_is_listed_with_its_endpoint(endpoint, unsupported):
    named = {name for name in unsupported if name in inspect.signature(ENDPOINTS[endpoint]).parameters}
    assert named
    assert named <= listed(endpoint)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_field_of_the_official_client_is_read_by_the_edge_or_listed(endpoint):
    code = "".join(path.read_text(encoding="utf-8") for path in (EDGE / "api").rglob("*.py"))
    read = set(re.findall(r'"(\w+)"', code))
    fields = set(inspect.signature(ENDPOINTS[endpoint]).parameters) - OF_TRANSPORT
    assert not sorted(fields - read - listed(endpoint))
