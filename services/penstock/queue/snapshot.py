"""What operators see of a shard beyond its figures."""

from heapq import nlargest
from typing import Any

from penstock.queue.shelves import Shelves
from penstock.v1.inference_pb2 import Priority

MAX_TENANTS = 50  # rows; whoever has most tickets waiting


def class_name(priority: int) -> str:
    name = Priority.Name(priority)  # type: ignore[arg-type]  # an int that came from this very enum
    return name.removeprefix("PRIORITY_").lower()


def tables(shelves: Shelves) -> dict[str, Any]:
    deepest = nlargest(MAX_TENANTS, shelves.by_tenant.items(), key=lambda row: row[1])
    return {
        "depth": [
            {
                "class": class_name(priority),
                "tenant_id": tenant_id,
                "waiting": load.tickets,
                "waiting_tokens": load.tokens,
            }
            for (priority, tenant_id), load in deepest
        ]
    }
