"""`keephold init`: a configuration to begin with, and what MCP clients and ACP editors are told to find it.

The file works as it is. Nothing is ever overwritten: a file that is there stays, with --force under another name. Exit
code 0 when it was written or only the snippets were wanted, 2 when it could not be.
"""

import shlex
import shutil
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import click

from keephold.cli.init_snippets import PLACEHOLDER, Snippet, snippets
from keephold.cli.printing import print_json
from keephold.errors import KeepholdError

NAME = "keephold.toml"
URL = "http://127.0.0.1:8420"
"""Where `keephold serve` listens unless it is told otherwise (`ServeSettings`, which takes a while to import)."""

_FACES = {
    ("mcp", "stdio"): "For MCP clients that start it themselves",
    ("mcp", "http"): f"For MCP clients of a `keephold serve` that runs; {PLACEHOLDER} stands for the token it prints",
    ("acp", "stdio"): "For editors that have it as their agent, over ACP; it needs a model and `keephold[agent]`",
}


@click.command()
@click.argument("DIR", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Write it even if one is there, which stays as keephold.toml.bak.")
@click.option("--snippets", "only_snippets", is_flag=True, help="Write nothing: only print the snippets.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def init(dir: Path | None, force: bool, only_snippets: bool, as_json: bool) -> None:
    """Write a keephold.toml to begin with into DIR, by default the working directory.

    It has a command and a terminal as examples, and every other setting commented out with its default. Then it prints
    what MCP clients and ACP editors are told to find it, and the next steps.
    """
    file = (dir or Path()).absolute() / NAME
    kept = None if only_snippets else _write(file, force=force)
    listed = snippets(_program(), file, URL)
    if as_json:
        facts: dict[str, Any] = {"config": str(file), "written": not only_snippets}
        facts["kept"] = None if kept is None else str(kept)
        print_json(facts | {"snippets": [snippet._asdict() for snippet in listed]})
        return
    if not only_snippets:
        click.echo(f"wrote {file}")
        if kept is not None:
            click.echo(f"the one that was there is {kept}")
        click.echo()
    _show(listed)
    if not only_snippets:
        _show_steps(file.parent)


def _write(file: Path, *, force: bool) -> Path | None:
    """Write the file; where the one is that was there, if there was one."""
    text = Path(__file__).with_name("starter.toml").read_bytes()
    kept = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if force and file.exists():
            kept = next(path for path in _backups(file) if not path.exists())
            file.rename(kept)
        with file.open("xb") as new:  # `x`: of two that write at once, one is told that the other was first
            new.write(text)
    except FileExistsError as error:
        raise KeepholdError(
            f"{file} is there already, and stays as it is; --force writes a new one and keeps it as {NAME}.bak, "
            "--snippets writes nothing",
            code="config_invalid",
        ) from error
    except OSError as error:
        raise KeepholdError(
            f"{file} cannot be written: {error.strerror}; name another DIR", code="config_invalid"
        ) from error
    return kept


def _backups(file: Path) -> Iterator[Path]:
    return (file.with_name(f"{NAME}.bak{number or ''}") for number in count())


def _program() -> list[str]:
    """How this keephold is started from anywhere."""
    found = shutil.which("keephold")
    beside = Path(sys.executable).with_name("keephold")
    if found is None and beside.exists():  # of an environment that is not activated
        found = str(beside)
    return [sys.executable, "-m", "keephold"] if found is None else [found]


def _show_steps(directory: Path) -> None:
    """Last, where they are still to be seen."""
    steps = [("keephold check", "whether it is right"), ("keephold serve", "the dashboard, and MCP over HTTP")]
    steps += [("keephold init --snippets", "the above once more")]
    if not directory.samefile(Path.cwd()):
        steps.insert(0, (f"cd {shlex.quote(str(directory))}", ""))
    click.echo(click.style("Next:\n", bold=True))
    for line, meaning in steps:
        click.echo(f"    {line:<26}{meaning}".rstrip())


def _show(listed: list[Snippet]) -> None:
    for (face, by), title in _FACES.items():
        click.echo(click.style(f"{title}:\n", bold=True))
        of_face = [snippet for snippet in listed if (snippet.face, snippet.by) == (face, by)]
        for snippet in of_face:
            same = [other for other in of_face if other.text == snippet.text]
            if same[0] is not snippet:
                continue  # several clients have one format: it is shown once
            click.echo("; ".join(f"{other.client}: {click.style(other.file, fg='cyan')}" for other in same) + "\n")
            click.echo("".join(f"    {line}\n" for line in snippet.text.splitlines()))
