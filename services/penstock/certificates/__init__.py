"""Makes certificates: an authority and the leaves of processes, for local meshes, commands and tests.

It needs the package `cryptography`, which tiers other than auth do not have. They only read certificates.
"""
