"""What others do when more comes than can be served, as orders of the real ticket book.

Each module names its source. `POLICIES` is what a scenario may name; `penstock` is the queue as it is shipped.
"""

from penstock.simulator.baselines.policy import POLICIES, BaselinePolicy

__all__ = ["POLICIES", "BaselinePolicy"]
