"""Checks of a world: answers, charges, frame invariants, leaks, and the failures that its faults allow. Pure."""
