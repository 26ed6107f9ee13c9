"""The command line. A command's module is imported when the command is called; `keephold --help` imports none.

Exit codes: 0 for success; 2 for wrong usage, a wrong configuration and anything else keephold refuses, with the reason
on stderr and no traceback; 141, which is what shells say of a program that SIGPIPE ended, when nobody reads what is
printed; 130 for Ctrl-C. A command may define others for itself.
"""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

import click

from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

GROUPS = {
    "Give tools to models": {
        "serve": ("keephold.cli.serve:serve", "Serve everything over HTTP: dashboard, MCP, API, completions."),
        "chat": ("keephold.cli.chat:chat", "Talk to a model that has the tools of the configuration."),
        "turn": ("keephold.cli.turn:turn", "Run batches of tool calls, one JSON line each."),
        "mcp": ("keephold.cli.mcp:mcp", "Serve the tools to MCP clients."),
        "acp": ("keephold.cli.acp:acp", "Be an agent for editors, over ACP."),
    },
    "See what goes on": {
        "top": ("keephold.cli.top:top", "Watch handles live, and act on them."),
        "ps": ("keephold.cli.ps:ps", "List the calls that have not stopped, whoever runs them."),
        "show": ("keephold.cli.show:show", "Show everything there is of a handle."),
        "logs": ("keephold.cli.logs:logs", "Print what a handle has printed."),
        "conversations": ("keephold.cli.conversations:conversations", "List conversations, and what goes on in them."),
    },
    "Step in": {
        "attach": ("keephold.cli.attach:attach", "Take over the terminal of a handle."),
        "send": ("keephold.cli.send:send", "Send something to a handle that runs, or answer its question."),
        "abort": ("keephold.cli.abort:abort", "End handles, whoever runs them."),
        "wait": ("keephold.cli.wait:wait", "Wait until handles have stopped."),
        "complete": ("keephold.cli.complete:complete", "Bring what a call waits for from outside."),
        "revoke": ("keephold.cli.complete:revoke", "Make the open keys of a conversation worthless."),
    },
    "Clean up": {
        "gc": ("keephold.cli.gc:gc", "Let go of what is old, and of what belongs to nothing."),
        "forget": ("keephold.cli.conversations:forget", "Let go of what was said in a conversation."),
    },
    "Set up": {
        "init": ("keephold.cli.init:init", "Write a configuration to begin with, and tell clients of it."),
        "check": ("keephold.cli.check:check", "Check the configuration and what it needs on this machine."),
        "bench": ("keephold.cli.bench:bench", "Measure what this machine and the disk of the store can do."),
        "tools": ("keephold.cli.tools:tools", "List the tools of a configuration, as a model sees them."),
        "acp-check": ("keephold.cli.acp_check:acp_check", "Check any ACP agent against the protocol."),
        "completion": ("keephold.cli.completion:completion", "Print the completion script of a shell."),
        "help": ("keephold.cli.help:help", "Explain a command."),
    },
}
"""The commands by purpose: where each is, and its line in `keephold --help`. The reference has them in this order."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def _page(name: str, context: click.Context, formatter: click.HelpFormatter) -> None:
    """What a command's `--help` ends with."""
    from keephold.cli.pages import write_page

    write_page(name, formatter)


class _Refused(click.ClickException):
    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        with suppress(OSError):  # on a full disk there may be nowhere to say so
            super().show(file)


@contextmanager
def _in_words() -> Iterator[None]:
    """What goes wrong, as an exit code and a reason on stderr."""
    try:
        yield
    except KeepholdError as error:
        from keephold.cli.printing import printable

        raise _Refused(printable(error.message)) from error
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error, click.Abort) and not isinstance(error.__context__, KeyboardInterrupt):
            raise  # a person said no
        with suppress(OSError, AttributeError):  # there may be no stderr
            if sys.stderr.isatty():
                click.echo(err=True)  # after the ^C
        raise click.exceptions.Exit(128 + signal.SIGINT) from error
    except UnicodeEncodeError as error:
        if not "\ud800" <= error.object[error.start] <= "\udfff":
            raise
        raise _Refused("an id, a name or a key was given that is not UTF-8, as all of them are") from error
    except OSError as error:
        if not _is_of_printing(error):
            raise
        _print_no_more()
        if error.errno == errno.EPIPE:
            raise click.exceptions.Exit(128 + signal.SIGPIPE) from error
        raise _Refused(f"what is printed cannot be written: {error.strerror}") from error


def _is_of_printing(error: OSError) -> bool:
    """Whether it came out of `click.echo`, by which all commands print. One of another file is a mistake of ours."""
    from traceback import walk_tb

    return any(frame.f_code is click.echo.__code__ for frame, _ in walk_tb(error.__traceback__))


def _print_no_more() -> None:
    """What was not written stays in a buffer, and writing it at the very end would go wrong again."""
    with suppress(OSError, AttributeError):  # no file, as in tests; none at all
        unwritten = sys.stdout.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, unwritten)
        os.close(nothing)


class _Commands(click.Group):
    """A group that knows its commands by name and one line of help, and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        command.format_epilog = partial(_page, cmd_name)  # type: ignore[method-assign]
        if ctx.resilient_parsing:  # a shell completes a line
            from keephold.cli.completion import complete_names

            complete_names(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Without the commands themselves: a shell that completes a command's name imports none of them."""
        from click.shell_completion import CompletionItem

        named = [(name, line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=line) for name, line in named), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        column = max(map(len, COMMANDS))  # the same in every group
        for purpose, group in GROUPS.items():
            with formatter.section(purpose):
                formatter.write_dl([(name.ljust(column), line) for name, (_, line) in group.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches  # slow to import, and needed only here

            near = get_close_matches(args[0], COMMANDS, n=1)
            right = f"Did you mean `{near[0]}`?" if near else f"There are: {', '.join(COMMANDS)}."
            raise click.UsageError(f"No such command `{args[0]}`. {right}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _in_words():  # --help and --version print here
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _in_words():
            return super().invoke(ctx)


@click.group(cls=_Commands)
@click.version_option(package_name="keephold", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Asynchronous, stateful tool execution for LLM agents: every tool call is a handle."""
    if os.environ.get("NO_COLOR"):
        context.color = False  # of every command: theirs comes from here
