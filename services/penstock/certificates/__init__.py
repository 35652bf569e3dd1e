"""Makes certificates: an authority and the leaves of processes, for local meshes, commands and tests.

It needs the package `cryptography`, which most tiers do not have. They only read certificates.
"""
