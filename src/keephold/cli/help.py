"""`keephold help`: print the help of one command or of all."""

import click
from click.shell_completion import CompletionItem


def _commands(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from keephold.cli import COMMANDS

    return [CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]


@click.command()
@click.argument("COMMAND", required=False, shell_complete=_commands)
@click.pass_context
def help(context: click.Context, command: str | None) -> None:
    """Explain a COMMAND, or list them all: the same as `keephold COMMAND --help`."""
    from keephold.cli import main

    above = context.find_root()
    if command is None:
        click.echo(main.get_help(above))
        return
    name, found, _ = main.resolve_command(above, [command])
    assert found is not None, "resolve_command refuses unknown names"
    with click.Context(found, parent=above, info_name=name) as asked:
        click.echo(found.get_help(asked))
