"""The table: the range of each field of each message between tiers.

A field without an entry fails a test. A frame with a field out of its range ends the stream of its sender.
"""

from penstock.mesh.limits.admission import ADMISSION
from penstock.mesh.limits.batch import BATCH
from penstock.mesh.limits.queue import QUEUE
from penstock.mesh.limits.region import REGION
from penstock.mesh.limits.region_quota import REGION_QUOTA
from penstock.mesh.limits.responses import RESPONSES
from penstock.mesh.limits.rules import Table
from penstock.mesh.limits.scheduler import SCHEDULER
from penstock.mesh.limits.shared import FAILURES, STREAM, TICKETS
from penstock.mesh.limits.worker import WORKER

TABLE: Table = {
    **STREAM,
    **FAILURES,
    **TICKETS,
    **ADMISSION,
    **QUEUE,
    **SCHEDULER,
    **WORKER,
    **RESPONSES,
    **BATCH,
    **REGION,
    **REGION_QUOTA,
}
