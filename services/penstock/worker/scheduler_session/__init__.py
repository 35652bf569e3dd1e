"""The worker's session with the scheduler that places runs on it: the client end of the stream and the reports sent
on it (load, throughput, progress, prefix-cache deltas).
"""
