"""The core: which requests wait, and which endpoint each gets. It has no clock and no network."""
