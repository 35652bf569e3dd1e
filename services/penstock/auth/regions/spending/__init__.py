"""A spending region: follows its home region, and reports demand and usage to it."""
