"""Load shedding at the edge: a request is rejected before it is tokenized if the queue has recently rejected a
comparable one.
"""
