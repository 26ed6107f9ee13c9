"""Sessions of the documentation, run: a `console` block is commands behind `$` and what they print.

What is printed must be what is shown, line by line. `…` stands for anything within its line; alone on a line it stands
for any number of lines.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 120
launchers: list[Path] = []
"""Where programs are that start ours warm. Not in a terminal, which they could not control."""


@dataclass(frozen=True)
class Step:
    """A command and what it is said to print."""

    command: str
    shown: str


def steps(session: str) -> list[Step]:
    """The commands of a session. One with `<<'EOF'` goes on to the line `EOF`."""
    found: list[Step] = []
    lines = iter(session.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            assert found, f"a session begins with `$ ` and a command, not with {line!r}"
            found[-1] = Step(found[-1].command, f"{found[-1].shown}{line}\n")
            continue
        command = line[2:]
        if command.endswith("<<'EOF'"):
            for more in lines:
                command += f"\n{more}"
                if more == "EOF":
                    break
        found.append(Step(command, ""))
    return found


def environment(directory: Path, *first: Path) -> dict[str, str]:
    """What commands are run with: these directories and this Python's programs in front of the PATH."""
    # Nothing of whoever runs the tests: not their stores, their pytest options, nor the make they may run under.
    theirs = ("KEEPHOLD_", "PYTEST_", "MAKE", "MFLAGS")
    ours = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
    ours["PATH"] = os.pathsep.join(map(str, (*first, Path(sys.executable).parent, ours.get("PATH", ""))))
    ours["LC_ALL"] = "C.UTF-8"
    ours["XDG_STATE_HOME"] = str(directory / "state")  # where the store of commands is that name none
    ours["PYTHONDONTWRITEBYTECODE"] = "1"
    ours["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a reader has pytest alone; all of ours take two seconds each time
    return ours


def run(command: list[str], directory: Path) -> str:
    """What a program prints, stderr included."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment(directory, *launchers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode and command[0] == sys.executable:
        raise AssertionError(f"it ended with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def matches(shown: str, printed: str) -> bool:
    """Whether the output is the one that is shown."""
    pattern = ""
    for line in shown.splitlines():
        pattern += r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + r"\n"
    return re.fullmatch(pattern, printed if printed.endswith("\n") or not printed else f"{printed}\n") is not None
