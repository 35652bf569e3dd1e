"""Allowed imports between packages, and shared protos that no dependency overwrites."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import distributions
from pathlib import Path

import grimp
import pytest

from paths import REPO

PACKAGE = REPO / "services" / "penstock"
OWNERS = {
    "google/rpc/status_pb2.py": "googleapis-common-protos",
    "google/rpc/error_details_pb2.py": "googleapis-common-protos",
    "opentelemetry/proto/trace/v1/trace_pb2.py": "opentelemetry-proto",
    "opentelemetry/proto/common/v1/common_pb2.py": "opentelemetry-proto",
}


def test_imports_point_one_way():
    lint = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([lint, "--no-cache"], cwd=REPO, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_imports_have_no_cycle():
    """Imports inside functions and imports for types only count as well."""
    graph = grimp.build_graph("penstock", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 400
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_every_source_folder_is_a_package_with_a_docstring():
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(each) for each in sorted(folders) if not (each / "__init__.py").is_file()] == []
    silent = [each for each in sorted(folders) if not (each / "__init__.py").read_text().startswith('"""')]
    assert silent == []


@pytest.mark.parametrize("path", OWNERS)
def test_shared_protos_come_from_their_owner_alone(path):
    """Some packages contain copies of these protos, and the one installed last would take effect."""
    carriers = [each.name for each in distributions() if any(str(file) == path for file in each.files or ())]
    assert carriers == [OWNERS[path]]
