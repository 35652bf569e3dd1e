"""Admin RPCs of auth: keys and tenants as messages, and the service that changes them."""
