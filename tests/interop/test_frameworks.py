"""Clients of agent frameworks, with their defaults, use `keephold serve` and `keephold mcp` (M1, M3, M7, W).

Every scenario is written once; the drivers `frameworks.py` and `frameworks.mjs` do single calls. Scenarios that take
long or need a server of their own run for every framework with `KEEPHOLD_SOAK=1`.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.interop.foreign import HERE, MCP1, MCP2, MCPDO, NODE, NPM_ROOT, PATIENCE, need, node
from tests.interop.form import FILLED_IN
from tests.mcp.serving import end_background
from tests.serve.serving import TOKEN, Served, environment, served
from tests.soak import SOAK
from tests.trusting import write_trusted

PYTHON = {"mcp1": MCP1, "langchain": MCP1, "mcp2": MCP2, "fastmcp": MCP2, "openai": MCP2, "pydantic_ai": MCP2}
FRAMEWORKS = [*PYTHON, "typescript1", "typescript2", "inspector", "ext_tasks"]
ASKS = [framework for framework in FRAMEWORKS if framework not in ("openai", "ext_tasks")]
"""openai-agents cannot ask its user; ext-tasks does not ask for the result of a task that needs input."""
WITH_TASKS = ("inspector", "ext_tasks")
"""These get a call that lasts as a task, and its result at its end."""
TOOLS = {"work": "tests.mcp.office", "slow_compute": "tests.interop.jobs", "register": "tests.interop.form"}
CONFIG = "".join(
    f'[conversation.tools.{name}]\nsource = "python"\nfunction = "{module}:{name}"\nrun = "unattended"\n\n'
    for name, module in TOOLS.items()
)
soak = pytest.mark.skipif(not SOAK, reason="runs with KEEPHOLD_SOAK=1")


class Driver:
    """A process that has clients of a framework."""

    def __init__(self, framework: str, target: dict[str, Any]) -> None:
        words = [framework, json.dumps(target)]
        if framework in PYTHON:
            need(PYTHON[framework])
            command = [str(PYTHON[framework] / "bin" / "python"), str(HERE / "frameworks.py"), *words]
        else:
            need(NPM_ROOT)
            command = [str(NODE), "--input-type=module", "-e", (HERE / "frameworks.mjs").read_text(), *words]
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=NPM_ROOT, env=env)
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._early: dict[int, dict[str, Any]] = {}
        self._count = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._replies.put(json.loads(line))

    def send(self, do: str, client: str = "a", **what: Any) -> int:
        assert self.process.stdin is not None
        self._count += 1
        self.process.stdin.write(json.dumps({"id": self._count, "do": do, "client": client, **what}) + "\n")
        self.process.stdin.flush()
        return self._count

    def calling(self, tool: str, client: str = "a", **arguments: Any) -> int:
        return self.send("call", client, tool=tool, arguments=arguments)

    def reply(self, id: int, patience: float = PATIENCE) -> dict[str, Any]:
        while id not in self._early:
            reply = self._replies.get(timeout=patience)
            self._early[reply["id"]] = reply
        return self._early.pop(id)

    def result(self, id: int, patience: float = PATIENCE) -> Any:
        """The JSON that a call has returned."""
        reply = self.reply(id, patience)
        assert not reply.get("error", True), reply
        return json.JSONDecoder().raw_decode(reply["text"])[0]  # notifications may follow

    def call(self, tool: str, client: str = "a", **arguments: Any) -> Any:
        return self.result(self.calling(tool, client, **arguments))

    def waited(self, *handles: str, client: str = "a") -> list[dict[str, Any]]:
        """Await them as a model does: again, if the answer says that they still run."""
        completed: list[dict[str, Any]] = []
        while len(completed) < len(handles):
            completed = self.call("await", client, all=list(handles), timeout_secs=3)["completed"]
        return completed

    def tools(self, client: str = "a") -> list[str]:
        tools: list[str] = self.reply(self.send("list", client))["tools"]
        return tools

    def asked(self) -> list[int]:
        asked: list[int] = self.reply(self.send("asked"))["asked"]
        return asked

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Inspector(Driver):
    """The clients of `mcpdo`, the Inspector's command line: connections that a daemon keeps."""

    def __init__(self, target: dict[str, Any]) -> None:
        need(NPM_ROOT)
        self._target = target
        self._home = tempfile.mkdtemp()
        self._connected = dict[str, str]()
        self._asked = list[int]()
        self._replies = queue.Queue()
        self._early = {}
        self._count = 0

    def _mcpdo(self, client: str, *words: str) -> tuple[int, Any]:
        place = {"HOME": self._home, "MCP_INSPECTOR_DAEMON_DIR": self._home, "MCP_INSPECTOR_SECRET_STORE": "file"}
        run = node(MCPDO, "--format", "json", "--connection", client, *words, environment=place, patience=2 * PATIENCE)
        return run.returncode, json.loads(run.stdout) if run.stdout.strip() else run.stderr

    def _connect(self, client: str) -> None:
        if client in self._connected:
            return
        self._connected[client] = client
        if "url" in self._target:
            (name, value), *_ = self._target["headers"].items()
            words = [self._target["url"], "--header", f"{name}: {value}"]
        else:
            settings = [word for name, value in self._target["env"].items() for word in ("-e", f"{name}={value}")]
            words = ["--cwd", self._target["cwd"], *settings, "--", self._target["command"], *self._target["args"]]
        code, said = self._mcpdo(client, "connect", "--era", "modern", *words)
        assert code == 0, said

    def send(self, do: str, client: str = "a", **what: Any) -> int:
        self._count += 1
        id = self._count
        if do == "asked":
            self._early[id] = {"asked": self._asked}
            return id
        self._connect(client)
        threading.Thread(target=lambda: self._replies.put({"id": id, **self._done(do, client, **what)})).start()
        return id

    def _done(self, do: str, client: str, tool: str = "", arguments: Mapping[str, Any] = {}) -> dict[str, Any]:
        if do == "list":
            _, said = self._mcpdo(client, "tools/list")
            return {"tools": [each["name"] for each in said["tools"]]}
        code, said = self._mcpdo(client, "tools/call", tool, "--tool-args-json", json.dumps(dict(arguments)))
        while isinstance(said, dict) and "elicitationPending" in said:
            asked = said["elicitationPending"]
            fields = asked["requestedSchema"]["properties"]
            self._asked.append(len(fields))
            answers = [f"{name}:={json.dumps(FILLED_IN[name])}" for name in fields]
            code, said = self._mcpdo(client, "elicitation/respond", asked["elicitationId"], *answers)
        if not isinstance(said, dict) or "content" not in said:
            return {"raised": f"{code}: {said}"}
        texts = [each["text"] for each in said["content"] if each["type"] == "text"]
        return {"text": "\n".join(texts), "error": said.get("isError", False)}

    def kill(self) -> None:
        _, daemon = self._mcpdo("a", "daemon", "status")
        if isinstance(daemon, dict) and daemon.get("pid"):
            os.kill(daemon["pid"], signal.SIGKILL)
        shutil.rmtree(self._home, ignore_errors=True)


def drives(framework: str, target: dict[str, Any]) -> Driver:
    return Inspector(target) if framework == "inspector" else Driver(framework, target)


@contextmanager
def driving(framework: str, target: dict[str, Any]) -> Iterator[Driver]:
    driver = drives(framework, target)
    try:
        yield driver
    finally:
        driver.kill()


def _http(server: Served) -> dict[str, Any]:
    return {"url": server.mcp, "headers": {"Authorization": f"Bearer {TOKEN}"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("frameworks"), CONFIG) as server:
        yield server


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that answers after a second: every client has more patience."""
    with served(tmp_path_factory.mktemp("quick"), f"[mcp]\nanswer_within_secs = 1\n{CONFIG}") as server:
        yield server


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_M1_a_framework_lists_tools_spawns_and_waits(server: Served, framework: str) -> None:
    with driving(framework, _http(server)) as driver:
        assert {*TOOLS, "await", "wait_for"} <= set(driver.tools())
        gate = server.path(f"{framework}-gate")
        assert driver.call("work", spawn=framework, gate=gate)["state"] == "running"
        Path(gate).touch()
        assert driver.waited(framework)[0]["result"] == f"worked at {framework}-gate"
        _two_clients_wait(driver, framework)
        if framework in ASKS:
            assert driver.call("register") == FILLED_IN
            assert driver.asked() == [len(FILLED_IN)]


def _two_clients_wait(driver: Driver, name: str) -> None:
    """One client waits for a handle that the other completes."""
    driver.call("create_wait_handle", "b", handleId=f"{name}-w", type="custom")
    patience = 4000 if name == "openai" else 20_000  # it gives up after 5 s
    waiting = driver.calling("wait_for", "a", handleId=f"{name}-w", timeoutMs=patience)
    driver.call("complete_wait_handle", "b", handleId=f"{name}-w", result={"by": "b"})
    assert driver.result(waiting)["result"] == {"by": "b"}


def test_M3_a_session_for_every_call_finds_what_another_has_spawned(server: Served) -> None:
    """Ten spawns and their `await` at once, each in a session of its own: they arrive in any order (A4)."""
    with driving("langchain", _http(server)) as driver:
        driver.tools()
        names = [f"session-{number}" for number in range(10)]
        gate = server.path("sessions")
        spawned = [driver.calling("work", spawn=name, gate=gate) for name in names]
        waiting = driver.calling("await", all=names, timeout_secs=20)
        assert [driver.result(each)["state"] for each in spawned] == ["running"] * 10
        Path(gate).touch()
        assert [each["result"] for each in driver.result(waiting)["completed"]] == ["worked at sessions"] * 10


@pytest.mark.parametrize(
    "framework", [name if name == "langchain" else pytest.param(name, marks=soak) for name in FRAMEWORKS]
)
async def test_M3_a_killed_host_leaves_its_spawn_to_the_next(tmp_path: Path, framework: str) -> None:
    """On stdio, where langchain starts a process for every call."""
    write_trusted(tmp_path / "keephold.toml", CONFIG, tmp_path / "state")
    words = ["-W", "error", "-m", "keephold", "mcp", "--store", f"sqlite:///{tmp_path / 'store.db'}"]
    target = {"command": sys.executable, "args": words, "env": environment(tmp_path), "cwd": str(tmp_path)}
    try:
        with driving(framework, target) as driver:
            assert driver.call("work", spawn="w", gate=str(tmp_path / "gate"))["state"] == "running"
        (tmp_path / "gate").touch()
        with driving(framework, target) as driver:
            assert driver.waited("w")[0]["result"] == "worked at gate"
    finally:
        await end_background(tmp_path)


@soak
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_M7_a_call_that_lasts_is_answered_with_its_handle(quick: Served, framework: str) -> None:
    with driving(framework, _http(quick)) as driver:
        lasting = driver.calling("slow_compute", seconds=3)
        if framework in WITH_TASKS:
            assert driver.reply(lasting)["text"] == "computed in 3 s"
            return
        handle = driver.result(lasting)
        assert handle["id"].startswith("call:") and handle["state"] == "running"
        assert driver.waited(handle["id"])[0]["result"] == "computed in 3 s"


@soak
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_M3_a_killed_client_leaves_its_spawn_to_the_next(server: Served, framework: str) -> None:
    """It dies while it waits for its spawn."""
    name = f"{framework}-killed"
    with driving(framework, _http(server)) as driver:
        gate = server.path(name)
        assert driver.call("work", spawn=name, gate=gate)["state"] == "running"
        driver.calling("wait_for", handleId=name, timeoutMs=4000)
    Path(gate).touch()
    with driving(framework, _http(server)) as driver:
        assert driver.waited(name)[0]["result"] == f"worked at {name}"


@soak
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_M7_a_client_uses_a_server_that_was_killed_and_restarted(tmp_path: Path, framework: str) -> None:
    with served(tmp_path, CONFIG) as server, driving(framework, _http(server)) as driver:
        driver.call("create_wait_handle", handleId="w", type="custom")
        server.kill()
        server.restart()
        driver.call("complete_wait_handle", handleId="w", result={"by": "a"})
        assert driver.call("wait_for", "b", handleId="w")["result"] == {"by": "a"}


@soak
def test_M7_a_call_that_its_client_has_given_up_is_found(server: Served) -> None:
    """openai-agents gives up after 5 s, long before the server answers with a handle."""
    with driving("openai", _http(server)) as driver:
        assert "raised" in driver.reply(driver.calling("slow_compute", seconds=7))
        said = ""
        while "computed in 7 s" not in said:
            said = driver.reply(driver.calling("sleep", ms=500))["text"]
        assert "call:" in said


@soak
@pytest.mark.timeout(300)
def test_M7_a_call_of_90_seconds(server: Served) -> None:
    """All frameworks at once, with the defaults of both sides: no client raises, and every call is found."""
    drivers = {framework: drives(framework, _http(server)) for framework in FRAMEWORKS if framework != "openai"}
    try:
        calls = {framework: driver.calling("slow_compute", seconds=90) for framework, driver in drivers.items()}
        for framework, driver in drivers.items():
            if framework in WITH_TASKS:
                assert driver.reply(calls[framework], 120)["text"] == "computed in 90 s"
                continue
            handle = driver.result(calls[framework], 80)
            assert handle["state"] == "running", framework
            assert driver.waited(handle["id"])[0]["result"] == "computed in 90 s", framework
    finally:
        for driver in drivers.values():
            driver.kill()
