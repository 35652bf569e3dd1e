"""Identity of processes: certificates and their reload, credentials, and the table of calls that each tier may make."""
