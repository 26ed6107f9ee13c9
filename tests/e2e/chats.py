"""A directory for chats: a configuration with tools, a script for the model, and real `keephold chat` processes."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tests.e2e.driver import until
from tests.e2e.panes import Pane
from tests.e2e.place import Said, ran
from tests.trusting import write_trusted

from keephold.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]
CONFIG = """
[conversation.assistant]
model = "python:tests.e2e.chat_model:model"

[conversation.tools.deploy]
source = "local"
command = ["echo", "deployed to {{ tool.arguments.env }}"]
[conversation.tools.deploy.parameters.env]
type = "string"

[conversation.tools.gate]
source = "local"
command = ["sh", "-c", "echo $$ >>started; echo the gate is shut; until test -e open; do sleep 0.02; done; echo open"]
run = "unattended"

[conversation.tools.nasty]
source = "local"
command = ["printf", "\\\\033]2;stolen\\\\007\\\\033[2Jbe\\\\033[31mhaved\\n"]
run = "unattended"

[conversation.tools.kept]
source = "local"
command = ["sh", "-c", "echo the gate is shut; until test -e open; do sleep 0.02; done; echo wide open"]
run = "unattended"
spawn.stateful = true
spawn.lifecycle.on_turn_end = "keep"

[conversation.tools.shell]
source = "terminal"
command = ["bash", "--norc", "--noprofile"]
env = { PS1 = "inner> " }
run = "unattended"
spawn.lifecycle.on_turn_end = "keep"

[agents.helper]
description = "Helps."
model = "python:tests.e2e.chat_model:helper"
run = "unattended"
"""


class Chats:
    """The directory. `says` is the script of the model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        write_trusted(directory / "keephold.toml", CONFIG)
        self.script()
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("KEEPHOLD_", "EDITOR"))}
        self.environment = {
            **ours, "KEEPHOLD_STORE": f"sqlite:///{directory}/work.db", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"
        }  # fmt: skip

    def script(self, *says: dict[str, Any], of: str = "script") -> None:
        (self.directory / f"{of}.json").write_text(json.dumps(says))

    def touch(self, name: str) -> None:
        (self.directory / name).touch()

    @property
    def given(self) -> str:
        """What the model was given last, as JSON."""
        return (self.directory / "given.json").read_text()

    def interrupted(self, conversation: str) -> bool:
        """Whether a turn of it was left open, and goes on in the next chat."""
        return asyncio.run(self._open_turn(conversation))

    async def _open_turn(self, conversation: str) -> bool:
        store = SqliteStore(self.directory / "work.db")
        await store.open(lambda _: None)
        try:
            return await store.turn(conversation) is not None
        finally:
            await store.close()

    # Without a terminal

    def start(self, *arguments: str, stdin: int = subprocess.PIPE) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "keephold", "chat", *arguments],
            cwd=self.directory, env=self.environment, start_new_session=True,
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def chat(self, *arguments: str, stdin: str = "") -> Said:
        return ran(("chat", *arguments), self.directory, self.environment, stdin)

    # At a terminal

    @contextmanager
    def pane(self, rows: int = 40, cols: int = 80) -> Iterator["ChatPane"]:
        """A shell in a terminal; whatever runs in it is gone at the end."""
        with ChatPane(self, rows, cols) as pane:
            try:
                yield pane
            finally:
                for process in pane.processes():
                    process.kill()
                until(lambda: not pane.processes())


class ChatPane(Pane):
    """A terminal in which somebody chats."""

    def __init__(self, chats: Chats, rows: int, cols: int) -> None:
        super().__init__(chats.directory, chats.environment, rows, cols)
        self._directory = chats.directory

    def chat(self, *arguments: str) -> None:
        """Start it, and wait until it is there."""
        self.type(f"{self.command('chat', *arguments)}; echo code $?")
        self.until(" · conversation ")

    @staticmethod
    def command(*arguments: str) -> str:
        return " ".join((sys.executable, "-W", "error", "-m", "keephold", *arguments))

    def processes(self) -> list[psutil.Process]:
        """The chats that run here."""
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            here = process.info["cwd"] == str(self._directory)
            if here and (process.info["cmdline"] or [])[3:6] == ["-m", "keephold", "chat"]:
                found.append(process)
        return found

    def left(self, code: int = 0) -> None:
        """Until the chat is over, with that code, and the terminal is as it was."""
        self.until(f"code {code}")
        self.back()
        self.type("stty -a | grep -o ' echo ' && echo sane")
        self.until("\nsane")

    def idle(self) -> None:
        """Until no turn runs."""
        until(lambda: self.last.startswith(">") and "  working " not in self.screen, what=lambda: self.screen)

    def write(self, text: str) -> None:
        """Type, without Enter."""
        self._run("send-keys", "-l", text)

    def hangs_up(self) -> None:
        """The terminal goes away under whatever runs in it."""
        self._run("respawn-pane", "-k", "sleep 1000")

    @property
    def lines(self) -> list[str]:
        """What is to be seen, without what is empty at the end."""
        return self.screen.rstrip().splitlines()

    @property
    def rolled(self) -> list[str]:
        """What was ever to be seen and has not been overwritten."""
        return self._run("capture-pane", "-p", "-S", "-").rstrip().splitlines()

    @property
    def title(self) -> str:
        return self._run("display-message", "-p", "#{pane_title}").strip()

    def count(self, text: str) -> int:
        return sum(text in line for line in self.rolled)
