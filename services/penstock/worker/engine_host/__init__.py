"""The worker's side of the engine process: start, supervise and restart it, the pipe to it, and its last reported
state. Imports no torch.
"""
