"""Quarantine after an engine crash: suspect runs are repeated one at a time on the next engine, confirmed ones are
listed as poison and reported to every scheduler.
"""
