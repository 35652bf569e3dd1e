"""The endpoints `GET /v1/models` and `GET /v1/models/{name}`."""

from collections.abc import Iterable

import orjson

from penstock.chassis.errors import NotFound
from penstock.edge.api.openai.body.fields import quoted
from penstock.edge.api.openai.common import Json
from penstock.v1.inference_pb2 import Model


def model_list(models: Iterable[Model], *, created: int) -> bytes:
    return orjson.dumps({"object": "list", "data": [_model(each, created) for each in models]})


def model_object(models: Iterable[Model], name: str, *, created: int) -> bytes:
    for model in models:
        if model.name == name:
            return orjson.dumps(_model(model, created))
    raise NotFound(
        f"no worker serves a model called {quoted(name)}; GET /v1/models lists those served", reason="MODEL_UNKNOWN"
    )


def _model(model: Model, created: int) -> Json:
    described: Json = {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "penstock",
        "max_model_len": model.context_length,  # a field of vLLM that load tools read
    }
    if model.targets:
        described["route"] = {each.model: each.weight for each in model.targets}
    return described
