"""What holds for every test."""

import os

# Models here are tiny: torch's threads would only wait for one another. Read at its import, in child processes too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
