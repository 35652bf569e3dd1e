"""Stores of a world, which survive the processes that write them: the disks and databases of auth and batch."""
