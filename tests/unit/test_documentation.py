"""README, CONTRIBUTING, CHANGELOG and docs/: each command parses, and each name that they mention exists.

`tests/system/test_examples.py` runs their Python code.
"""

import ast
import importlib.util
import json
import os
import re
import runpy
import shlex
import tomllib

import click
import pytest
import yaml

from command_line import parse_penstock
from documents import (
    DOCUMENTS,
    LINK,
    README,
    SOURCES,
    SPAN,
    anchors,
    blocks,
    commands,
    find_path,
    is_module,
    is_path,
    is_proto,
    prose,
    spans,
    symbols,
)
from monitoring.rules import FAULTS
from monitoring.slo import OBJECTIVES
from paths import REPO
from penstock.chassis.observability import semconv
from penstock.cli.options import TIERS
from tiny_model import write_tiny_model

LANGUAGES = {"console", "python", "mermaid", "text", "json", "toml", "yaml", "protobuf", "promql"}
# Where the commands of a console block run. test_documented_cluster.py checks those of a cluster, and
# tests/system/test_documented_commands.py runs those of a mesh on this machine and of a PostgreSQL server. Commands of
# a checkout build, test or measure for minutes; they are parsed alone.
PLACES = {"local", "cluster", "database", "checkout"}
OTHER_PROGRAMS = {".", "curl", "docker", "git", "kubectl", "mv", "node", "npm", "pip", "python"}
OTHER_PROGRAMS |= {"createdb", "pg_dump", "pg_restore", "psql", "promtool"}
metric_docs = runpy.run_path(str(REPO / "tools" / "gen_metric_docs"))
ALL_SERIES = [each for series in metric_docs["TIERS"].values() for each in series]
# Prometheus' names and labels, names of alerts, and the suffixes of histograms.
METRIC_WORDS = {word for each in ALL_SERIES for word in (each.prometheus_name, *each.prometheus_labels)}
METRIC_WORDS |= {each.alert for each in (*OBJECTIVES, *FAULTS)}
METRIC_WORDS |= {"_bucket", "_sum", "_count", "_seconds", "_bytes", "_ratio"}
CONFIGURATION = (REPO / "docs" / "configuration.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"PENSTOCK_[A-Z0-9_]*[A-Z0-9]", CONFIGURATION.partition("## Renamed settings")[0]))
COMMON = {f"PENSTOCK_<TIER>_{name}" for name in re.findall(r"`PENSTOCK_<TIER>_([A-Z_]+)`", CONFIGURATION)}
# Words in code spans that are not in Penstock's code: Kubernetes, packages, folders, naming conventions.
ALLOWED_WORDS = {"maxUnavailable", "terminationGracePeriodSeconds", "ops", "venv", "vllm", "on_x", "pop_", "is_"}
ALLOWED_WORDS |= {"uniqueItems", "propertyNames", "dependentSchemas", "oneOf"}  # of JSON Schema
# Fields of OpenAI's reference that are ignored.
ALLOWED_WORDS |= {"prediction", "reasoning_effort", "verbosity", "prompt_cache_options", "prompt_cache_retention"}
ALLOWED_WORDS |= {
    "include_obfuscation",
    "context_management",
    "max_tool_calls",
    "access_programs",
    "background_options",
}
# Reasons that end within the mesh, and defaults of types that are always raised with a reason of their own.
BETWEEN_TIERS = {
    *("LEASE_LOST", "LEASE_REVOKED", "START_INVALID", "TICKET_INVALID", "PROFILE_INVALID", "ENGINE_DIED", "LOADING"),
    *("MODEL_MISMATCH", "GRANT_INVALID", "MESSAGE_TOO_LARGE", "DEMAND_UNKNOWN", "SCALED_MODEL_MISSING"),
}
BETWEEN_TIERS |= {"ABORTED", "CANCELLED", "FAILED_PRECONDITION", "NOT_FOUND", "PERMISSION_DENIED", "SERVICE_UNKNOWN"}
BETWEEN_TIERS |= {"ALREADY_EXISTS", "RESPONSE_EXISTS", "RESPONSE_LOST", "REGION_DRAINED"}
BETWEEN_TIERS |= {"UNAUTHENTICATED", "UNAVAILABLE", "UNIMPLEMENTED"}
WITH_FORMER_NAMES = {"CHANGELOG.md", "configuration.md", "glossary.md"}
TRUST_DOMAIN = "penstock.local"
DOTTED = re.compile(r"(?:penstock|gen_ai|rpc|http)(?:\.\w+)+")


def by_name(document):
    return str(document.relative_to(REPO))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A home and working folder with the files that the documents name as examples."""
    home = tmp_path_factory.mktemp("home")
    models = home / "models"
    for model in ("Qwen2.5-0.5B-Instruct", "some-llama"):
        write_tiny_model(models / model)
    (models / "some-llama.gguf").touch()
    (home / "step_time.toml").touch()
    (home / "examples").symlink_to(REPO / "examples")
    (home / "FILE").touch()  # of any command
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.chdir(home)
        yield home


def test_the_readme_has_at_most_200_lines():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


def test_every_example_is_run_by_a_test():
    source = (REPO / "tests" / "system" / "test_examples.py").read_text(encoding="utf-8")
    examples = [*(REPO / "examples").glob("*.py"), *(REPO / "examples" / "node").glob("*.js")]
    assert not [each.name for each in examples if each.name not in source]


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_a_code_block_names_its_language_and_parses(block):
    assert block.language in LANGUAGES
    match block.language:
        case "python":
            compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case "json":
            json.loads(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "yaml":
            list(yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_a_console_block_says_where_its_commands_run(block):
    assert block.place in (PLACES if block.language == "console" else {""})


@pytest.mark.parametrize("block", blocks("console"), ids=str)
def test_the_commands_of_a_console_block_parse(block, folder):
    assert commands(block), "a console block shows commands after `$ `"
    for each in commands(block):
        for command in each.text.split(" && "):
            check_command(shlex.split(command, comments=True))


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_the_penstock_commands_in_the_text_parse(document, folder):
    for line, span in spans(document):
        if span.startswith("penstock ") and "…" not in span:
            try:
                check_command(shlex.split(span))
            except click.ClickException as error:
                pytest.fail(f"{document.name}:{line}: `{span}`: {error.format_message()}")


def check_command(words):
    while "=" in words[0]:  # a variable for this command alone
        check_variable(words.pop(0).partition("=")[0])
    program, *arguments = words
    if program == "penstock":
        parse_penstock([os.path.expandvars(each.replace("~", "$HOME")) for each in arguments])
    elif program.startswith(("./", "tools/", ".venv/", ".ci/")):
        check_tool(program, arguments)
    else:
        assert program in OTHER_PROGRAMS, f"{program} is no program that the documents may name"
        for each in arguments:
            if each.startswith(("deploy/", "docs/", "examples/", "services/", "tests/", "tools/")):
                assert (REPO / each).exists(), f"there is no {each}"


def check_tool(program, arguments):
    if program == ".venv/bin/python":
        assert (REPO / arguments[0]).is_file() or importlib.util.find_spec(arguments[arguments.index("-m") + 1])
        return
    path = REPO / program
    if program.startswith(".venv/"):
        return
    assert os.access(path, os.X_OK), f"{program} is no program"
    options = [each for each in arguments if each.startswith("--")]
    texts = [each.read_text(encoding="utf-8") for each in [path, *(REPO / "tools").rglob("*.py")]]
    assert not [each for each in options if not any(f'"{each.partition("=")[0]}"' in text for text in texts)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_link_leads_to_a_file_and_a_heading(document):
    for target in LINK.findall(prose(document)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{document.name}: {target}"
        assert not anchor or anchor in anchors(path), f"{document.name}: {target} is no heading"


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_file_and_symbol_in_the_text_exists(document):
    for line, span in spans(document):
        path, _, symbol = span.partition(":")
        if is_path(path):
            found = find_path(path)
            assert found, f"{document.name}:{line}: there is no {path}"
            if symbol and found.suffix == ".py":
                assert symbol in symbols(found), f"{document.name}:{line}: {path} has no {symbol}"


def test_the_page_on_kubernetes_lists_every_component_and_overlay():
    page = (REPO / "docs" / "operations" / "kubernetes.md").read_text(encoding="utf-8")
    folders = [each for kind in ("components", "overlays") for each in (REPO / "deploy" / "k8s" / kind).iterdir()]
    assert not [each.name for each in folders if f"| `{each.relative_to(REPO)}/` |" not in page]


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_variable_in_a_document_exists(document):
    if document.name not in WITH_FORMER_NAMES:
        for name in re.findall(r"PENSTOCK_[A-Z0-9_]+", document.read_text(encoding="utf-8")):
            check_variable(name)


def check_variable(name):
    of_any_tier = re.sub(r"PENSTOCK_[A-Z]+_", "PENSTOCK_<TIER>_", name)
    assert name.endswith("_") or name in NAMES or of_any_tier in COMMON, f"there is no variable {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_metric_module_and_message_in_the_text_exists(document):
    values = {value for value in vars(semconv).values() if isinstance(value, str)} | {each.name for each in ALL_SERIES}
    protos = "\n".join(path.read_text(encoding="utf-8") for path in (REPO / "protos").rglob("*.proto"))
    for line, span in spans(document):
        if DOTTED.fullmatch(span) and document.name not in {"CHANGELOG.md", "glossary.md"}:
            known = span in values or span == TRUST_DOMAIN or is_module(span) or is_proto(span, protos)
            assert known, f"{document.name}:{line}: {span} is no metric, attribute, module or message"


def test_the_page_of_metrics_is_what_its_generator_writes():
    page = (REPO / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == metric_docs["page"](), "a series changed: run .venv/bin/python tools/gen_metric_docs"


def test_every_error_reason_that_a_caller_may_see_is_on_the_api_page():
    page = (REPO / "docs" / "api.md").read_text(encoding="utf-8")
    paths = [path for tier in ("chassis", "client", *TIERS) for path in (SOURCES / tier).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    reasons = set(re.findall(r"(?:default_reason(?:: ClassVar\[str\])? = |reason=)\"([A-Z_]+)\"", code))
    reasons |= set(re.findall(r"default_reason = grpc\.StatusCode\.\w+, \"([A-Z_]+)\"", code))
    assert {"QUEUE_FULL", "QUOTA_EXCEEDED", "KEY_MISSING"} <= reasons
    assert not sorted(reason for reason in reasons - BETWEEN_TIERS if f"`{reason}`" not in page)


@pytest.fixture(scope="module")
def identifiers():
    """All words of the product's code and contracts."""
    paths = [*SOURCES.rglob("*.py"), *(REPO / "protos").rglob("*.proto")]
    texts = [path.read_text(encoding="utf-8") for path in paths if "_pb2" not in path.name]
    return set(re.findall(r"\w+", "\n".join(texts)))


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_identifier_in_the_text_exists(document, identifiers):
    """The first columns of the glossary have former names; the changelog and the page of settings are left out."""
    former = {each for line in prose(document).splitlines() for each in SPAN.findall(line.split(" | ")[0])}
    skipped = former if document.name == "glossary.md" else set()
    for line, span in spans(document):
        is_name = re.fullmatch(r"\.?_?[A-Za-z]\w*(\.\w+)*", span) and not DOTTED.fullmatch(span)
        if is_name and not (is_path(span) or span in skipped or document.name in {"CHANGELOG.md", "configuration.md"}):
            missing = set(span.split(".")) - identifiers - ALLOWED_WORDS - NAMES - METRIC_WORDS - {""}
            assert not missing, f"{document.name}:{line}: no code has {', '.join(missing)}"
