"""One request's way through the mesh, as plain calls: `now` comes in, effects go out.

Owns what was emitted, which attempt runs, when to give up and what to tell at the end. Knows no stream and no clock, so
that every order in which the world's news can come is a test.
"""
