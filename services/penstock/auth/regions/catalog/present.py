"""The catalog that a process of auth has in memory."""

from penstock.auth.authorizer import Authorizer
from penstock.auth.models.routes import RouteList
from penstock.auth.regions.catalog.catalog import Catalog, catalog_of


def present_catalog(authorizer: Authorizer, routes: RouteList) -> Catalog:
    reservations = authorizer.reservations
    tenants = [each.tenant for each in reservations.quotas]
    return catalog_of(tenants, authorizer.keys.of_tenant(), reservations.prices.all, routes.all)
