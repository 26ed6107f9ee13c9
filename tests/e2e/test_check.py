"""`keephold check` on a real machine: agents and servers, permissions, ports, extras, each with what gets it right."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.serve.serving import environment, served

TOOL = "[conversation.tools.t]\nsource = 'local'\ncommand = ['true']\nrun = 'unattended'\n"


@pytest.fixture(autouse=True)
def _private(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)


def check(
    directory: Path, text: str, *, without: str | None = None, own_port: bool = True, **variables: str
) -> dict[str, Any]:
    """What is reported about this configuration; `without` is a module that is not installed. Unless `own_port` is
    False, it has a port that nobody else on this machine can have taken."""
    free = "\n[serve]\nport = 0\n" if own_port and "[serve]" not in text else ""
    (directory / "keephold.toml").write_text(text + free)
    hidden = f"sys.modules[{without!r}] = None; " if without else ""
    program = f"import sys; {hidden}from keephold.cli import main; main(prog_name='keephold')"
    done = subprocess.run(
        [sys.executable, "-c", program, "check", "--json", "--config", "keephold.toml"],
        cwd=directory, env={**environment(directory), **variables}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    return report


def only(report: dict[str, Any], kind: str = "problems") -> str:
    (found,) = report[kind]
    return str(found)


# What the file names


def test_L1_agents_are_listed_with_their_model_or_program(tmp_path: Path) -> None:
    report = check(
        tmp_path,
        TOOL + "[conversation.assistant]\nmodel = 'test:x'\n[agents.reader]\n"
        "[agents.writer]\nmodel = 'test:y'\n[agents.other]\ncommand = ['sh', '-c', 'true']\n"
        "[agents.lost]\ncommand = 'no-such-agent'\n",
    )
    agents = {agent["id"]: agent for agent in report["agents"]}
    assert [agents[id]["model"] for id in ("reader", "writer", "other")] == ["test:x", "test:y", None]
    assert (agents["other"]["program"], agents["other"]["found"]) == ("sh", True)
    assert agents["lost"]["found"] is False
    assert only(report).endswith("agents.lost.command: program `no-such-agent` is not in PATH; "
                                 "install it, or write its whole path")  # fmt: skip


def test_M6_the_program_of_an_mcp_server_is_looked_for(tmp_path: Path) -> None:
    report = check(
        tmp_path,
        "[mcp.servers.here]\ncommand = ['sh', 'server.sh']\n[mcp.servers.there]\nurl = 'https://example.org/mcp'\n"
        "[mcp.servers.lost]\ncommand = 'no-such-server'\n[mcp.servers.off]\ncommand = 'nor-this'\nenabled = false\n",
    )
    servers = {server["name"]: server for server in report["servers"]}
    assert set(servers) == {"here", "there", "lost"}
    assert servers["here"]["path"].endswith("/sh")
    assert servers["there"]["url"] == "https://example.org/mcp"
    assert "mcp.servers.lost.command: program `no-such-server` is not in PATH" in only(report)


def test_M6_the_directory_of_a_server_must_be_there(tmp_path: Path) -> None:
    report = check(tmp_path, "[mcp.servers.here]\ncommand = 'sh'\ncwd = 'nowhere'\n")
    assert f"mcp.servers.here.cwd: there is no directory {tmp_path}/nowhere; make it" in only(report)


def test_L1_they_have_a_line_each_for_people(tmp_path: Path) -> None:
    (tmp_path / "keephold.toml").write_text(
        TOOL + "[agents.lost]\ncommand = 'no-such-agent'\n[mcp.servers.there]\nurl = 'https://example.org/mcp'\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "keephold", "check"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert rows[1:] == [["lost", "agent", "no-such-agent:", "not", "found"],
                        ["there", "MCP", "server", "https://example.org/mcp"]]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "module", "extra"),
    [
        ("[conversation.assistant]\nmodel = 'anthropic:x'\n", "pydantic_ai", "agent"),
        ("[conversation.tools.sh]\nsource = 'terminal'\ncommand = 'sh'\nrun = 'unattended'\n", "pyghostty", "terminal"),
    ],
)
def test_L1_an_extra_that_is_missing_is_noted_with_how_to_get_it(
    tmp_path: Path, text: str, module: str, extra: str
) -> None:
    report = check(tmp_path, TOOL + text, without=module)
    assert report["ok"]
    assert f"pip install 'keephold[{extra}]'" in only(report, "notes")


# Permissions


STORE = TOOL + "[store]\nurl = 'sqlite:///work.db'\n"


def test_K5_a_store_that_others_may_read_is_a_problem(tmp_path: Path) -> None:
    store = tmp_path / "work.db"
    store.touch(0o600)
    assert check(tmp_path, STORE)["ok"]
    store.chmod(0o640)
    problem = only(check(tmp_path, STORE))
    assert problem.startswith(f"keephold.toml:6: store.url: the store {store} may be read or written by other users")
    assert problem.endswith(f": chmod 600 {store}")


def test_K5_a_token_that_others_may_read_is_a_problem(tmp_path: Path) -> None:
    token = tmp_path / "work.db-token"
    token.touch(0o644)
    assert only(check(tmp_path, STORE)).endswith(f"(it gives full access): chmod 600 {token}")


def test_K5_what_keephold_makes_itself_is_right(tmp_path: Path) -> None:
    """The store, its token and the state directory as `keephold serve` leaves them, under a careless umask."""
    before = os.umask(0o000)
    try:
        with served(tmp_path, TOOL, "--config", "keephold.toml", env={}):
            pass
    finally:
        os.umask(before)
    assert check(tmp_path, TOOL + f"[store]\nurl = 'sqlite:///{tmp_path}/store.db'\n")["problems"] == []


def test_K5_a_state_directory_that_is_open_to_others_is_a_problem(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "keephold"
    directory.mkdir(0o755, parents=True)
    assert only(check(tmp_path, TOOL)).endswith(f"is open to other users of this machine: chmod 700 {directory}")
    directory.chmod(0o700)
    assert check(tmp_path, TOOL)["ok"]


def test_K5_a_directory_that_anybody_may_write_to_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert f"chmod o-w {tmp_path}" in only(check(tmp_path, STORE))
    tmp_path.chmod(0o1777)  # as /tmp is: nobody can replace what is not theirs
    assert check(tmp_path, STORE)["ok"]


def test_L1_a_store_needs_its_directory(tmp_path: Path) -> None:
    report = check(tmp_path, TOOL + "[store]\nurl = 'sqlite:///deep/work.db'\n")
    assert f"there is no directory {tmp_path}/deep for the store; make it" in only(report)


# Ports


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_L1_a_port_that_is_taken_is_a_problem_that_names_who_has_it(tmp_path: Path, taken: int) -> None:
    problem = only(check(tmp_path, TOOL + f"[serve]\nport = {taken}\n"))
    assert problem.startswith(
        f"keephold.toml:6: serve.port: port {taken} of 127.0.0.1 is taken by process {os.getpid()} ("
    )
    assert problem.endswith("; end that, or write another port")


def test_L1_the_port_that_serve_would_use_is_looked_at_also_if_the_file_has_none(tmp_path: Path) -> None:
    with ExitStack() as held:
        with suppress(OSError):  # if we cannot have it, somebody else does
            held.enter_context(socket.create_server(("127.0.0.1", 8420)))
        report = check(tmp_path, TOOL, own_port=False)
    assert report["ok"], "it may be there for something else"
    assert only(report, "notes").startswith("`keephold serve` could not start: port 8420 of 127.0.0.1 is taken by ")


def test_L1_a_port_that_is_free_is_fine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert check(tmp_path, TOOL + f"[serve]\nport = {port}\n")["ok"]


def test_L1_an_address_of_another_machine_is_a_problem(tmp_path: Path) -> None:
    problem = only(check(tmp_path, TOOL + "[serve]\nhost = '192.0.2.1'\nport = 0\n"))
    assert "write an address of this machine" in problem


def test_L1_that_it_serves_already_is_only_a_note(tmp_path: Path) -> None:
    with served(tmp_path, TOOL) as server:
        report = check(tmp_path, TOOL + f"[serve]\nport = {server.port}\n")
    assert report["ok"]
    serving = f"keephold already serves on port {server.port} of 127.0.0.1: process {server.process.pid} ("
    assert only(report, "notes").startswith(serving)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_K1_a_network_that_would_be_let_in_without_a_token_is_noted(tmp_path: Path, host: str) -> None:
    text = TOOL + f"[serve]\nhost = '{host}'\nport = 0\n"
    report = check(tmp_path, text)
    assert report["ok"], "a token may be given when it is served"
    note = only(report, "notes")
    place = "keephold.toml:6: serve.host: `keephold serve` could not start: "
    assert note.startswith(f"{place}binding {host} lets the network in")
    serving = subprocess.run(
        [sys.executable, "-m", "keephold", "serve", "--config", "keephold.toml"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (serving.returncode, serving.stderr) == (2, f"Error: {note.removeprefix(place)}\n")
    assert check(tmp_path, text, KEEPHOLD_TOKEN="0123456789abcdef")["notes"] == []
    assert check(tmp_path, text.replace(host, "127.0.0.1"))["notes"] == []
