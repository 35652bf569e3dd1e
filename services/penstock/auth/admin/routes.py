"""Operations of operators on routes. A change takes effect once it is in the store."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from penstock.auth.models.messages import definition_of, route_message
from penstock.auth.models.routes import Route, RouteList
from penstock.auth.store.store import Change, DeleteRoute, PutRoute
from penstock.v1 import admin_pb2 as pb


class RouteChanges:
    """Changes the routes one at a time, so that no change is based on a definition that another one replaces."""

    def __init__(
        self,
        routes: RouteList,
        persist: Callable[[Change], Awaitable[None]],
        changing: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._routes = routes
        self._persist = persist
        self._changing = changing

    async def put(self, request: pb.PutRouteRequest) -> pb.PutRouteResponse:
        given, definition = request.route, definition_of(request.route)
        async with self._changing():
            route = self._routes.next(given.name, given.tenant_id, definition, given.revision)
            await self._store(route)
        return pb.PutRouteResponse(route=route_message(route))

    async def roll_back(self, request: pb.RollBackRouteRequest) -> pb.RollBackRouteResponse:
        async with self._changing():
            route = self._routes.rolled_back(request.name, request.tenant_id)
            await self._store(route)
        return pb.RollBackRouteResponse(route=route_message(route))

    async def delete(self, request: pb.DeleteRouteRequest) -> pb.DeleteRouteResponse:
        async with self._changing():
            self._routes.find(request.name, request.tenant_id)
            await self._persist(DeleteRoute(request.name, request.tenant_id))
            self._routes.delete(request.name, request.tenant_id)
        return pb.DeleteRouteResponse()

    def list(self) -> pb.ListRoutesResponse:
        return pb.ListRoutesResponse(routes=[route_message(each) for each in self._routes.all])

    async def _store(self, route: Route) -> None:
        await self._persist(PutRoute(route))
        self._routes.put(route)
