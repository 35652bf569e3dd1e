"""Usage: queries over totals, and the export of the ledger. Never on the store's thread, nor on the event loop."""
