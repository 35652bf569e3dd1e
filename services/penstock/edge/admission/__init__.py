"""Load shedding at the edge: a request is rejected before it is tokenized if the queue has just rejected a comparable
one.
"""
