"""Worlds of several regions: each a whole mesh, whose edges offer requests to each other over a link that fails."""
