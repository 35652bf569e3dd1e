"""The `penstock` command: options, output and exit codes. No other package imports it.

It makes no decision about a request, and addresses a mesh only through its public APIs. `commands` declares the
commands. The folder has more than a dozen entries: a module for each command with code of its own, and two modules that
commands share (`options`, `tables`).
"""
