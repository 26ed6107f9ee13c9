"""The command line. A command's module is imported when the command is called; `keephold --help` imports none.

Exit codes of all commands: 0 for success; 2 with the reason on stderr, and no traceback, for wrong usage, a wrong
configuration and other refusals; 130 for Ctrl-C; 141, as shells report SIGPIPE, when nobody reads stdout.
"""

import atexit
import errno
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import IO, Any

import click
from click.shell_completion import CompletionItem

from keephold.errors import KeepholdError

GROUPS = {
    "Give tools to models": {
        "serve": ("keephold.cli.serve:serve", "Serve everything over HTTP: dashboard, MCP, API, completions."),
        "chat": ("keephold.cli.chat:chat", "Talk to a model that has the tools of the configuration."),
        "turn": ("keephold.cli.turn:turn", "Run batches of tool calls, one JSON line each."),
        "mcp": ("keephold.cli.mcp:mcp", "Serve the tools to MCP clients."),
        "acp": ("keephold.cli.acp:acp", "Run an agent for editors, over ACP."),
        "worker": ("keephold.cli.worker:worker", "Run tools for an engine, on this machine."),
    },
    "Inspect": {
        "top": ("keephold.cli.top:top", "Watch handles live, and act on them."),
        "ps": ("keephold.cli.ps:ps", "List the calls that have not stopped, of all processes."),
        "show": ("keephold.cli.show:show", "Show everything that is stored of a handle."),
        "logs": ("keephold.cli.logs:logs", "Print the output of a handle."),
        "conversations": ("keephold.cli.conversations:conversations", "List conversations, with their live handles."),
        "requests": ("keephold.cli.requests:requests", "List what waits for you: permissions, results, questions."),
        "permissions": ("keephold.cli.requests:permissions", "List standing permissions, and revoke them."),
    },
    "Control": {
        "run": ("keephold.cli.spawn:run", "Run a tool once, and print what it prints."),
        "spawn": ("keephold.cli.spawn:spawn", "Start a tool in the background."),
        "attach": ("keephold.cli.attach:attach", "Take over the terminal of a handle."),
        "send": ("keephold.cli.send:send", "Send input to a running handle, or answer its question."),
        "allow": ("keephold.cli.requests:allow", "Allow a call, or let the model see its result."),
        "deny": ("keephold.cli.requests:deny", "Deny a call, or withhold its result."),
        "abort": ("keephold.cli.abort:abort", "Abort handles, in any process."),
        "retry": ("keephold.cli.abort:retry", "Repeat a call that was stopped because it ended its process."),
        "wait": ("keephold.cli.wait:wait", "Wait until handles have stopped."),
        "complete": ("keephold.cli.complete:complete", "Complete a parked call by its key."),
        "revoke": ("keephold.cli.complete:revoke", "Invalidate the open keys of a conversation."),
        "logout": ("keephold.cli.access:logout", "End the browser sessions of the dashboard."),
    },
    "Clean up": {
        "store": ("keephold.cli.housekeeping:store", "Inspect, check, back up, restore and upgrade the store."),
        "gc": ("keephold.cli.housekeeping:gc", "Delete old handles and events, and orphaned files."),
        "forget": ("keephold.cli.conversations:forget", "Delete the transcript of a conversation."),
    },
    "Set up": {
        "init": ("keephold.cli.init:init", "Write a first configuration, and print settings for clients."),
        "trust": ("keephold.cli.trust:trust", "Let a found keephold.toml act; list those that may."),
        "untrust": ("keephold.cli.trust:untrust", "Remove a keephold.toml from the trusted files."),
        "check": ("keephold.cli.check:check", "Check the configuration and what it needs on this machine."),
        "mcp-login": ("keephold.cli.mcp_login:mcp_login", "Log in to an MCP server whose tools are used (OAuth)."),
        "bench": ("keephold.cli.bench:bench", "Measure this machine and the disk of the store."),
        "tools": ("keephold.cli.tools:tools", "List the tools of a configuration, as a model sees them."),
        "acp-check": ("keephold.cli.acp_check:acp_check", "Check any ACP agent against the protocol."),
        "completion": ("keephold.cli.completion:completion", "Print the completion script of a shell."),
        "help": ("keephold.cli:help_", "Explain a command."),
    },
}
"""The commands by purpose: where each is, and its line in `keephold --help`. The reference has the same order."""

_NOBODY_READS = 141  # 128 + SIGPIPE, which Windows lacks
_UNIX = ("chat", "acp", "run", "spawn", "attach", "bench", "acp-check")
"""Commands that need terminals, sockets or processes of Unix."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def _page(name: str, context: click.Context, formatter: click.HelpFormatter) -> None:
    from keephold.cli.pages import write_page

    write_page(name, formatter)


class _Refused(click.ClickException):
    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        try:
            super().show(file)
        except OSError:  # stderr may be on a full disk
            _discard(sys.stderr)


@contextmanager
def _errors_to_exit_codes() -> Iterator[None]:
    """Turn errors into an exit code and a reason on stderr."""
    try:
        yield
    except KeepholdError as error:
        from keephold.cli.printing import printable

        raise _Refused(printable(error.message)) from error
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error, click.Abort) and not isinstance(error.__context__, KeyboardInterrupt):
            raise  # the user answered no
        with suppress(OSError, AttributeError):  # there may be no stderr
            if sys.stderr.isatty():
                click.echo(err=True)  # after the ^C
        raise click.exceptions.Exit(128 + signal.SIGINT) from error
    except UnicodeEncodeError as error:
        if not "\ud800" <= error.object[error.start] <= "\udfff":
            raise
        raise _Refused("an id, a name or a key was given that is not UTF-8, as all of them are") from error
    except OSError as error:
        if not _comes_from_printing(error):
            raise
        _discard(sys.stdout)
        if error.errno == errno.EPIPE:
            raise click.exceptions.Exit(_NOBODY_READS) from error
        raise _Refused(f"what is printed cannot be written: {error.strerror}") from error


def _comes_from_printing(error: OSError) -> bool:
    """Return whether `click.echo` raised it, by which all commands print. Any other `OSError` is a bug."""
    from traceback import walk_tb

    return any(frame.f_code is click.echo.__code__ for frame, _ in walk_tb(error.__traceback__))


def _discard(stream: IO[str]) -> None:
    """Redirect a stream to nowhere: Python would write its buffer at exit, fail again and exit with 120."""
    with suppress(OSError, AttributeError):  # it may not be a file, as in tests, or missing
        unwritten = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, unwritten)
        os.close(nothing)


class _Commands(click.Group):
    """Imports only the command that is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a program. Most commands end soon, and a quarter of their time went into the search for garbage among
        modules. So there is none before the command's module is imported, and none at exit."""
        gc.disable()
        atexit.register(gc.freeze)
        return super().__call__(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in _UNIX:
            from keephold.platforms import machine

            if machine.no_programs:
                raise _Refused(
                    f"`keephold {cmd_name}` does not run here: it needs terminals, sockets or processes of Unix"
                )
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        assert isinstance(command, click.Command)
        command.format_epilog = partial(_page, cmd_name)  # type: ignore[method-assign]
        if ctx.resilient_parsing:  # a shell completes a line
            from keephold.cli.completion import complete_names

            complete_names(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [*_beginning(incomplete), *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        column = max(map(len, COMMANDS))  # the same in every group
        for purpose, group in GROUPS.items():
            with formatter.section(purpose):
                formatter.write_dl([(name.ljust(column), line) for name, (_, line) in group.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from keephold.cli.parameters import near

            raise click.UsageError(f"No such command `{args[0]}`. {near(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)  # click empties the list
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._misplaced(ctx, error, given) or error from None

    def _misplaced(self, ctx: click.Context, error: click.NoSuchOption, args: list[str]) -> click.UsageError | None:
        """Return the error for an option of a command that is given before the command."""
        name = next((word for word in args if word in COMMANDS), None)
        command = None if name is None else self.get_command(ctx, name)
        for option in () if command is None else command.params:
            if isinstance(option, click.Option) and error.option_name in (*option.opts, *option.secondary_opts):
                value = "" if option.is_flag else f" {option.make_metavar(ctx)}"
                right = f"keephold {name} {error.option_name}{value}"
                return click.UsageError(f"`{error.option_name}` must come after the command: `{right}`", ctx)
        return None

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _errors_to_exit_codes():  # --help and --version print here
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_to_exit_codes():
            return super().invoke(ctx)


@click.group(cls=_Commands)
@click.version_option(package_name="keephold", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Asynchronous, stateful tool execution for LLM agents: every tool call is a handle."""
    if os.environ.get("NO_COLOR"):
        context.color = False  # commands inherit it


def _beginning(incomplete: str) -> list[CompletionItem]:
    """Complete the names of commands without importing any of them."""
    return [CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]


@click.command("help")
@click.argument("COMMAND", required=False, shell_complete=lambda context, parameter, incomplete: _beginning(incomplete))
@click.pass_context
def help_(context: click.Context, command: str | None) -> None:
    """Explain a COMMAND, or list them all: the same as `keephold COMMAND --help`."""
    above = context.find_root()
    if command is None:
        click.echo(main.get_help(above))
        return
    name, found, _ = main.resolve_command(above, [command])
    assert found is not None, "resolve_command refuses unknown names"
    with click.Context(found, parent=above, info_name=name) as asked:
        click.echo(found.get_help(asked))
