"""`penstock top`: a mesh at a glance, from what its processes say of themselves.

Asks each process for its snapshot, adds them up into one frame, and shows that; the frame and the screen are pure.
"""
