"""Model router: applies the routes of operators to requests, by the models that workers serve now."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from penstock.chassis.errors import Unavailable
from penstock.chassis.ids import new_id
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.holds import HoldLimits
from penstock.edge.models.routes import Route, RouteTable, choose, is_mirrored, target_messages
from penstock.edge.request.estimate import RequestEstimate
from penstock.edge.request.spec import RequestSpec
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.v1.inference_pb2 import Model
from penstock.v1.route_pb2 import ROUTE_AFFINITY_CONVERSATION, ROUTE_AFFINITY_KEY

STICKY_AFFINITIES = frozenset({ROUTE_AFFINITY_KEY, ROUTE_AFFINITY_CONVERSATION})
MAX_SESSION_CHARS = 256  # of a conversation's name; the rest does not count


class ModelRouter:
    """Chooses the model of each request whose name is a route."""

    def __init__(self, routes: RouteTable, catalog: ModelCatalog) -> None:
        self._routes = routes
        self._catalog = catalog
        self._routed: Counter[str] = Counter()

    @property
    def figures(self) -> dict[str, float]:
        return {
            "routes": len(self._routes),
            "routed": self._routed["target"],
            "routed_to_fallback": self._routed["fallback"],
            "routed_again": self._routed["again"],
        }

    def has(self, name: str) -> bool:
        """Whether the name is a route of any tenant. Costs one look-up."""
        return name in self._routes

    def model_of(self, estimate: RequestEstimate, caller: Identity | None, session: Callable[[], str]) -> str:
        """Return the model that serves a request. `session` returns the name of its conversation; empty: it has none.

        A resumed answer stays on the model whose version began it. Raises Unavailable / NO_WORKER if no worker serves
        any model of the route.
        """
        route = self._routes.find(estimate.model, caller.tenant_id if caller else "")
        if route is None:  # of another tenant
            return estimate.model
        if estimate.model_version and (model := self._model_of_version(route, estimate.model_version)):
            return model
        return self._choose(route, _affinity_value(route, estimate, caller, session))

    def mirror_of(self, context: RequestContext) -> str:
        """Return the model that receives a copy of a request; empty if none does. A resumed answer is not copied."""
        spec = context.spec
        if not context.route or spec.is_continued:
            return ""
        route = self._routes.find(context.route, context.request.identity.tenant_id)
        if route is None or not is_mirrored(route, context.request_id):
            return ""
        return route.mirror if self._catalog.is_available(route.mirror) else ""

    def is_replaced(self, context: RequestContext) -> bool:
        """Whether a request that has no run must be planned again.

        No worker serves the version of its plan at present, while workers serve another version of the model, or
        another model of its route. A request with output does not move to another model.
        """
        return self._catalog.is_replaced(context.request.plan) or bool(context.route and self._next_model(context))

    def spec_of(self, context: RequestContext) -> RequestSpec:
        """Return the spec for the next plan of a request, with the model that serves its route now."""
        model = self._next_model(context) if context.route else ""
        if not model:
            return context.spec
        self._routed["again"] += 1
        return replace(context.spec, model=model)

    def _next_model(self, context: RequestContext) -> str:
        """Return the model to which a request moves because no worker serves its own; empty if it stays."""
        if context.request.has_output or self._catalog.is_available(context.spec.model):
            return ""
        route = self._routes.find(context.route, context.request.identity.tenant_id)
        model = choose(route, context.request_id, self._catalog.is_available) if route else ""
        return model if model and self._catalog.is_available(model) else ""

    def hold_limits(self, route_name: str, tenant_id: str, model: str) -> HoldLimits | None:
        """Return the limits within which a call of a route waits for a worker of `model`. None if it does not wait."""
        route = self._routes.find(route_name, tenant_id) if route_name else None
        return None if route is None or self._catalog.is_available(model) else route.hold

    def missing_model(self, context: RequestContext) -> HoldLimits | None:
        """Return the limits within which a request waits for a worker of its model. None if it does not wait."""
        limits = self.hold_limits(context.route, context.request.identity.tenant_id, context.spec.model)
        return None if limits is None or self._next_model(context) else limits

    def list(self, tenant_id: str) -> list[Model]:
        """Return the models and routes that a tenant can name, by name. A route hides the model of its name."""
        models = {each.name: each for each in self._catalog.list()}
        listed = dict(models)
        for route in self._routes.of_tenant(tenant_id):
            targets = [models[model] for model, _ in route.weights if model in models]
            served = targets or [models[model] for model in route.fallbacks if model in models]
            listed.pop(route.name, None)
            if served or route.hold:
                listed[route.name] = _route_message(route, served)
        return [listed[name] for name in sorted(listed)]

    def _model_of_version(self, route: Route, version: str) -> str:
        return next((model for model in route.models if self._catalog.has_version(model, version)), "")

    def _choose(self, route: Route, value: str) -> str:
        model = choose(route, value, self._catalog.is_available)
        is_fallback = model in route.fallbacks
        if not is_fallback and not route.hold and not self._catalog.may_serve(model):
            text = f"no worker serves a target of {route.name!r} at present; retry in a moment"
            raise Unavailable(text, reason="NO_WORKER", retry_after=1.0)
        self._routed["fallback" if is_fallback else "target"] += 1
        return model


def _affinity_value(
    route: Route, estimate: RequestEstimate, caller: Identity | None, session: Callable[[], str]
) -> str:
    """Return the text by which the request is assigned to a target."""
    found = session()[:MAX_SESSION_CHARS] if route.affinity == ROUTE_AFFINITY_CONVERSATION else ""
    if not found and caller and route.affinity in STICKY_AFFINITIES:
        found = caller.key_id
    return found or estimate.request_id or new_id()


def _route_message(route: Route, served: list[Model]) -> Model:
    """Return the entry of a route. Without a worker, its sizes are not known and are 0."""
    return Model(
        name=route.name,
        context_length=min((each.context_length for each in served), default=0),
        vocabulary_size=min((each.vocabulary_size for each in served), default=0),
        workers_hint=sum(each.workers_hint for each in served),
        targets=target_messages(route.weights),
    )
