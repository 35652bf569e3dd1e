"""The `penstock` command: starts a mesh on this machine, talks to any mesh, measures it, administers it.

Owns local processes and what a person sees; never decides anything about a request. It knows the tiers only as
programs with an environment, and speaks to them through the public API alone.
"""
