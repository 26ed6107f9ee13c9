"""A model stages one of two changes with `git add --patch`, in a terminal. Run it: `python examples/terminal.py`.

`git` runs as it does for a user and asks about each change. The program prints the replies that a model reads and the
calls that a model would send. keephold detects that `git` waits for an answer and replies exactly then.
"""

import asyncio
import json
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import keephold

PLAIN = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
"""Ignore all `git` settings, so that `git` behaves the same on every machine."""


def git(place: str, *words: str) -> str:
    names = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    command = ["git", "-C", place, *names, *words]
    return subprocess.run(command, env=os.environ | PLAIN, check=True, stdout=subprocess.PIPE, text=True).stdout


def change_two_files(place: str) -> None:
    git(place, "init", "--quiet")
    for name, before in (("recipe.txt", "flour\n"), ("shopping.txt", "milk\n")):
        Path(place, name).write_text(before)
    git(place, "add", ".")
    git(place, "commit", "--quiet", "--message", "as it was")
    Path(place, "recipe.txt").write_text("flour\nfire\n")
    Path(place, "shopping.txt").write_text("milk\ntea\n")


def stage_in(place: str) -> keephold.Tool:
    """Make the tool. keephold notices when `git` reads; the long settle times are for busy machines."""
    tool = keephold.terminal(
        "git add --patch", name="stage", description="Stage changes one by one.", input="line", cwd=place, env=PLAIN
    )
    return replace(tool, spawn=keephold.policies.SpawnPolicy(settle_ms=5000, settle_max_ms=20_000))


def choose(shown: str) -> str:
    """Play the model: answer to a change."""
    return "n" if "+fire" in shown else "y"


async def drive(turn: keephold.Turn) -> None:
    arguments: dict[str, Any] = {"action": "spawn", "id": "s"}
    while True:
        [response] = await turn.run([keephold.ToolCall("1", "stage", arguments)])
        reply = json.loads(response.model)
        shown = reply.get("content", reply.get("result", "")).strip()
        print(f"stage({json.dumps(arguments)})")
        print("".join(f"  | {line}\n" for line in shown.splitlines()), end="")
        print(f"  {reply['state']}, {reply['yielded_because']}")
        if reply["state"] == "stopped":
            return
        arguments = {"action": "apply", "id": "s", "input": choose(shown)}


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        change_two_files(place)
        async with keephold.Runtime([stage_in(place)]) as rt, rt.turn() as turn:
            await drive(turn)
        print("staged:", git(place, "diff", "--cached", "--name-only").strip())


if __name__ == "__main__":
    asyncio.run(main())
