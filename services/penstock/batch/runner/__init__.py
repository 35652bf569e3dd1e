"""Runs the lines of the chunks that this replica holds, on any edge."""
