"""The edge: the public API, and owner of each client's connection, prompt and tokens emitted so far.

It turns text into ids and ids into text, spends nothing without auth's leave, waits its turn in the queue, runs on the
worker it is given, and starts again elsewhere with what was emitted when anything on the way dies. It never decides who
goes first or which worker runs what.
"""
