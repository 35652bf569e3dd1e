"""The `penstock` command: options, output and exit codes. No other package imports it.

It makes no decision about a request, and addresses a mesh only through its public APIs. `commands` declares the
commands; a command with code of its own has a module or a folder here. Commands share `options` and `tables`.
"""
