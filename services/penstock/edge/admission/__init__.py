"""Load shedding at the edge: a request is rejected before it is tokenized if the queue has just rejected a comparable
one, and the queue is probed if the edge cannot tell.
"""
