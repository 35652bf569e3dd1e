"""The results of a simulation: the ledger of requests, figures, service per tenant, and plots."""
