"""`penstock top`: a live view of a mesh, from the snapshots of its processes.

Polls a snapshot of each process, sums them up into one frame and renders it; the frame and its rendering are pure.
"""
