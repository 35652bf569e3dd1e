"""System tests run real processes; none of them may touch a mesh that a person runs on the same machine."""

import pytest

from tiny_model import write_tiny_model


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE", str(tmp_path_factory.mktemp("state")))
        patch.delenv("PENSTOCK_API_KEY", raising=False)
        patch.delenv("PENSTOCK_ADMIN_TOKEN", raising=False)
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder)
    return str(folder)
