"""What a simulation leaves behind: the ledger of requests, figures, service per tenant, and plots."""
