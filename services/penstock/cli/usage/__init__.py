"""`penstock usage`: usage as a table, CSV or JSON, the export of the ledger, and a benchmark of its store."""
