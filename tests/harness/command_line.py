"""The command line of `penstock`, as tests parse it."""

import click

from penstock.cli.__main__ import cli


def parse_penstock(arguments):
    """Parse as the command line does; nothing is run. Raises click.ClickException."""
    command, context = cli, click.Context(cli, info_name="penstock")
    if not arguments:
        return
    while isinstance(command, click.Group):
        if not arguments:
            return  # a group of commands, named as such
        if command.invoke_without_command and arguments[0].startswith("-"):
            break  # a group that is a command, too
        name, command, arguments = command.resolve_command(context, arguments)
        context = click.Context(command, info_name=name, parent=context)
    if arguments or all(not each.required for each in command.params):
        command.make_context(context.info_name, arguments, parent=context.parent)
