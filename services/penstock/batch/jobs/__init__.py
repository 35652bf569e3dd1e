"""Batches and their chunks. Pure: `now` is an argument, in Unix seconds."""
