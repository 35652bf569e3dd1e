"""Published scheduling and overload policies, as policies of the real ticket book, for comparison.

Each module names its source. `POLICIES` has the policies that a scenario may name; `penstock` is the shipped one.
"""

from penstock.simulator.baselines.policy import POLICIES, BaselinePolicy

__all__ = ["POLICIES", "BaselinePolicy"]
