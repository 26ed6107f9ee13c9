"""Two machines and one PostgreSQL server: processes with a network, a host name and process numbers of their own.

They share no directory for sockets; only the database's socket is in both. The processes are MCP servers of one
conversation, as the hosts of two agents would start them.
"""

import asyncio
import itertools
import json
import os
import random
import select
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from tests.patience import PATIENCE
from tests.postgres import everything, own_server
from tests.serve.serving import environment
from tests.soak import soak
from tests.trusting import write_trusted

from keephold.store import open_store
from keephold.store.housekeeping import housekeeping_of

CONFIG = """
[mcp]
background_secs = 0

[conversation.tools."*"]
run = "unattended"

[conversation.tools.python]
source = "terminal"
command = ["python3", "-q", "-i"]

[conversation.tools.shell]
source = "terminal"
command = ["bash", "--norc", "--noprofile"]

[conversation.tools.asks]
source = "python"
function = "tests.durable.two_hosts:asks"
"""
ALONE = ["unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", 'hostname "$0" && exec "$@"']
KEEPHOLD = [sys.executable, "-m", "keephold"]
pytestmark = pytest.mark.skipif(
    subprocess.run([*ALONE, "a", "true"], capture_output=True).returncode != 0, reason="may not make namespaces"
)


class Host:
    """A machine with one MCP server."""

    def __init__(self, client: Client, words: list[str]) -> None:
        self._client = client
        self._words = words

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        said: Any = (await self._client.call_tool(tool, arguments)).content[0]
        return dict(json.loads(said.text))

    def kill(self) -> None:
        kill(self._words)


def kill(words: list[str]) -> None:
    """Kill the first process of a machine, and with it all others."""
    ours = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == words]
    ours[0].kill()


class Typist:
    """A user at a terminal of a machine, who attaches to a handle."""

    def __init__(self, directory: Path, store: str, name: str, id: str) -> None:
        self._words = [*KEEPHOLD, "attach", id, "--conversation", "shared", "--store", store]
        (directory / name).mkdir()
        env = {**environment(directory / name), "TERM": "xterm", "XDG_RUNTIME_DIR": str(directory / name)}
        self.terminal, inner = os.openpty()
        self.command = subprocess.Popen(
            [*ALONE, name, *self._words], stdin=inner, stdout=inner, stderr=inner, env=env, start_new_session=True
        )
        os.close(inner)
        self._shown = b""

    def types(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    async def sees(self, text: str) -> None:
        """Read until this is shown."""
        async with asyncio.timeout(PATIENCE):
            while text.encode() not in self._shown:
                self._shown += await asyncio.to_thread(self._read)
        self._shown = self._shown.partition(text.encode())[2]

    def _read(self) -> bytes:
        ready, _, _ = select.select([self.terminal], [], [], 0.1)
        try:
            return os.read(self.terminal, 1 << 16) if ready else b""
        except OSError:
            raise AssertionError(f"the command has ended: {self._shown!r}") from None

    def kill(self) -> None:
        kill(self._words)
        self.command.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.terminal)  # hangs up
        self.command.kill()
        self.command.wait()


@asynccontextmanager
async def host(directory: Path, store: str, name: str) -> AsyncIterator[Host]:
    place = directory / name
    (place / "run").mkdir(parents=True)
    config = write_trusted(place / "keephold.toml", CONFIG, place / "state")
    shared = ["--store", store, "--conversation", "shared", "--config", str(config)]
    words = [*KEEPHOLD, "mcp", *shared]
    env = {**environment(place), "XDG_RUNTIME_DIR": str(place / "run"), "TMPDIR": str(place / "run")}
    given = StdioServerParameters(command=ALONE[0], args=[*ALONE[1:], name, *words], env=env, cwd=str(place))
    async with Client(stdio_client(given)) as client:
        yield Host(client, words)


def logs(directory: Path, store: str) -> str:
    """Return the terminal's output as a command on a third machine prints it."""
    command = [*KEEPHOLD, "logs", "repl", "--conversation", "shared", "--store", store]
    return subprocess.run(command, env=environment(directory), capture_output=True, text=True, check=True).stdout


async def test_A6_one_machine_uses_what_another_one_runs_until_that_dies(tmp_path: Path) -> None:
    with own_server("unix_socket_directories=/tmp") as server:
        store = f"postgresql://postgres@/postgres?host=/tmp&port={server.port}"
        async with host(tmp_path, store, "one") as one, host(tmp_path, store, "two") as two:
            await one.call("python", spawn="repl")
            assert (await two.call("await", any=["repl"]))["needs_input"]
            typed = await two.call("handle_apply", id="repl", input="import socket; socket.gethostname(), 6 * 7\n")
            assert "('one', 42)" in typed["content"]
            assert "('one', 42)" in await asyncio.to_thread(logs, tmp_path, store)

            await two.call("asks", spawn="question")
            assert (await one.call("await", any=["question"]))["needs_input"]
            await one.call("handle_apply", id="question", input=True)
            assert (await two.call("handle_fetch", id="question"))["result"] == "said True"

            line = "import time; time.sleep(1); print('rea' + 'dy', flush=True)\n"
            waiting = asyncio.create_task(two.call("await", output=[{"id": "repl", "pattern": "^ready"}]))
            await one.call("handle_apply", id="repl", input=line)
            assert (await waiting)["pending"][0]["matched"] == "ready"

            one.kill()
            ended = (await two.call("await", all=["repl"]))["completed"]
            assert ended[0]["result"] == "The process that ran this call ended before the call did."


async def test_K5_a_password_is_typed_into_a_terminal_of_another_machine_until_either_dies(tmp_path: Path) -> None:
    secret = "whisper-me-not"
    with own_server("unix_socket_directories=/tmp") as server:
        store = f"postgresql://postgres@/postgres?host=/tmp&port={server.port}"
        async with host(tmp_path, store, "one") as one:
            await asyncio.gather(one.call("shell", spawn="sh"), one.call("shell", spawn="other"))
            with Typist(tmp_path, store, "two", "sh") as typist:
                await typist.sees("detaches")
                typist.types("echo on $(hostname); read -s word; echo ${#word} characters\n")
                await typist.sees("on one")
                typist.types(f"{secret}\n")
                await typist.sees(f"{len(secret)} characters")
                written = await everything(server.url, "keephold")
                assert secret not in written and secret.encode().hex() not in written
                for file in server.directory.rglob("*"):  # the log and the WAL, too
                    assert not file.is_file() or secret.encode() not in file.read_bytes(), file
                typist.types("echo half a li")
                await typist.sees("half a li")
                typist.kill()
            words = [*KEEPHOLD, "send", "sh", "ne\n", "--conversation", "shared", "--store", store]
            (tmp_path / "three").mkdir()
            run = partial(subprocess.run, env=environment(tmp_path / "three"), capture_output=True, text=True)
            sent = await asyncio.to_thread(run, [*ALONE, "three", *words])
            assert "half a line" in sent.stdout, sent.stderr
            with Typist(tmp_path, store, "four", "other") as typist:
                await typist.sees("detaches")
                typist.types("cat\n")
                await typist.sees("cat")
                one.kill()
                typist.types("into the void\n")
                await typist.sees("Error: ")
                assert typist.command.wait(PATIENCE) == 2


@soak
@pytest.mark.timeout(3600)
async def test_E6_either_machine_is_killed_at_any_time(tmp_path: Path) -> None:
    """Its calls have stopped, the store has everything that was acknowledged, and the other machine keeps working."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    with own_server("unix_socket_directories=/tmp") as server:
        store = f"postgresql://postgres@/postgres?host=/tmp&port={server.port}"
        for number in range(10):
            names = [f"{name}{number}" for name in ("one", "two")]
            async with host(tmp_path, store, names[0]) as one, host(tmp_path, store, names[1]) as two:
                dies, lives = chance.sample((one, two), 2)
                begun: list[str] = []
                working = asyncio.create_task(_work(dies, lives, number, begun))
                await asyncio.sleep(chance.uniform(0, 3))
                assert not working.done(), working
                dies.kill()
                working.cancel()
                await asyncio.wait([working])
                if begun:
                    async with asyncio.timeout(PATIENCE):
                        ended = (await lives.call("await", all=begun))["completed"]
                    assert {each["id"] for each in ended} == {*begun}, (number, ended)
                    assert all("process that ran this call ended" in each["result"] for each in ended), ended
                await lives.call("python", spawn=f"after{number}")
                typed = await lives.call("handle_apply", id=f"after{number}", input="6 * 7\n")
                assert "42" in typed["content"]
                await lives.call("handle_abort", id=f"after{number}")
        assert await asyncio.to_thread(housekeeping_of(open_store(store)).check) == []


async def _work(one: Host, other: Host, number: int, begun: list[str]) -> None:
    """Begin terminals on one machine, and type into them from both."""
    for each in itertools.count():
        id = f"repl{number}.{each}"
        await one.call("python", spawn=id)
        begun.append(id)
        for typist in (other, one):
            typed = await typist.call("handle_apply", id=id, input="2 ** 10\n")
            assert "1024" in typed["content"], typed
