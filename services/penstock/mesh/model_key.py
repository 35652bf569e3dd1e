"""The key of a model between tiers, `name@digest`: two models of one name are never mixed. Callers use names only."""


def model_key(name: str, digest: str) -> str:
    return f"{name}@{digest}" if digest else name


def model_name(key: str) -> str:
    """Return the name that callers use. A digest has no `@`, a name may have."""
    return key.rpartition("@")[0] or key


def model_digest(key: str) -> str:
    """Return the digest; empty for a key without one."""
    name, _, digest = key.rpartition("@")
    return digest if name else ""
