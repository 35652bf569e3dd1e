"""The `penstock` command: options, output and exit codes. No other package imports it.

It makes no decision about a request, and uses only the public API of the tiers. There is a module for each command and
three that commands share (options, parameter types, tables), which makes more than a dozen.
"""
