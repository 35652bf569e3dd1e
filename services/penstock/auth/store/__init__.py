"""The store: changes that outlive the process, their SQL, the SQLite writer, and recovery from the store at start."""
