"""The header in which auth tells a proxy the regions that the tenant of a call allows: `x-penstock-regions`.

Its value is `*`, or names of regions that are separated by commas. A proxy removes the header of its clients, and keeps
that of a proxy of another region. Without the header a call does not leave its region.
"""

from typing import Final

HEADER: Final = "x-penstock-regions"
ALL_REGIONS: Final = "*"
