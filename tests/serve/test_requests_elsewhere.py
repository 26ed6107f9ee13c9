"""Open requests and standing permissions of a server, from the command line, over a kill and a restart (P6)."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.client import Client
from tests.mcp.clients import connected, texts
from tests.patience import PATIENCE
from tests.serve.serving import TOKEN, Served, environment, served

TOOLS = """
from pathlib import Path
import keephold

@keephold.tool(on_crash="replay", actions=("spawn", "fetch", "abort"))
async def wipe(path: str, note: str = "") -> str:
    Path(path).touch()
    return "wiped"
"""
CONFIG = """
[conversation.tools.wipe]
source = "python"
function = "disks:wipe"
"""


async def keephold(server: Served, *words: str, fails: bool = False) -> str:
    """Run a command on the server's store; what it printed."""
    command = [sys.executable, "-W", "error", "-m", "keephold", *words, "--store", f"sqlite:///{server.store}"]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=server.directory, env=environment(server.directory), capture_output=True, text=True
    )
    assert done.returncode == (2 if fails else 0), done
    return done.stderr if fails else done.stdout


async def listed(server: Served, what: str, count: int = 1) -> list[dict[str, Any]]:
    """Open requests or standing permissions, once they are so many."""
    async with asyncio.timeout(PATIENCE):
        while len(found := (await keephold(server, what, "--json")).splitlines()) != count:  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.02)
    return [json.loads(line) for line in found]


@asynccontextmanager
async def spawning(server: Served, id: str, **arguments: Any) -> AsyncIterator[Client]:
    """A client that has spawned `wipe` and waits for the permission."""
    async with connected(server.mcp, token=TOKEN) as client:
        calling = asyncio.create_task(client.call_tool("wipe", {"action": "spawn", "id": id, **arguments}))
        try:
            yield client
        finally:
            calling.cancel()
            await asyncio.wait([calling])


async def test_P6_requests_are_listed_and_decided_by_commands_and_end_with_their_process(tmp_path: Path) -> None:
    (tmp_path / "disks.py").write_text(TOOLS)
    wiped = tmp_path / "wiped"
    with served(tmp_path, CONFIG) as server:
        try:
            async with spawning(server, "w", path=str(wiped), note="a\u202eb"):
                (before,) = await listed(server, "requests")
                assert before["kind"] == "permission" and before["arguments"]["path"] == str(wiped)
                assert before["until"] == "revoked"
                server.kill()
        except BaseExceptionGroup:  # the client has lost its server
            pass
        assert await listed(server, "requests", 0) == [], "nobody would hear a decision"
        assert await keephold(server, "requests") == f"note: (no open request in the store {server.store})\n"
        assert "is not open" in await keephold(server, "allow", before["id"], fails=True)

        server.restart()
        (request,) = await listed(server, "requests")
        assert request["id"] != before["id"] and request["digest"] == before["digest"]
        assert not wiped.exists(), "what nobody has permitted does not run, not even after a crash"
        shown = await keephold(server, "requests")
        assert str(wiped) in shown and "\\u202e" in shown and "\u202e" not in shown
        assert "is not a question; decide it with" in await keephold(server, "send", request["id"], "yes", fails=True)
        allowed = await keephold(server, "allow", request["id"])
        assert str(wiped) in allowed and f"{request['id']}: allowed" in allowed
        await keephold(server, "wait", "w")
        assert wiped.exists()
        assert "allowed by" in (told := await keephold(server, "show", "w")) and "the user (the command line)" in told
        assert "is not open" in await keephold(server, "deny", request["id"], fails=True)


async def test_P6_standing_permissions_are_revoked_by_a_command(tmp_path: Path) -> None:
    (tmp_path / "disks.py").write_text(TOOLS)
    path = str(tmp_path / "wiped")
    with served(tmp_path, CONFIG) as server:
        async with server.client() as http, connected(server.mcp, token=TOKEN) as client:
            async with spawning(server, "a", path=path):
                (request,) = await listed(server, "requests")
                page = (await http.get("/", headers={"accept": "text/html"})).text
                assert "in this conversation until you revoke it or its process ends" in page
                said = {"decision": "approve", "remember": True, "digest": request["digest"]}
                assert (await http.post(f"/api/requests/{request['id']}", json=said)).json()["status"] == "taken"
                await keephold(server, "wait", "a")
            assert texts(await client.call_tool("wipe", {"path": path}))[0] == "wiped"
            (permission,) = await listed(server, "permissions")
            assert permission == (await http.get("/api/permissions")).json()[0]
            assert (permission["tool"], permission["by"], permission["until"]) == ("wipe", "the API", "revoked")
            assert permission["arguments"]["path"] == path
            assert permission["id"] in (page := (await http.get("/permissions")).text) and "Revoke" in page
            assert f"{permission['id']}: revoked" in await keephold(server, "permissions", "--revoke", permission["id"])
            assert "no standing permission" in await keephold(
                server, "permissions", "--revoke", permission["id"], fails=True
            )
            async with spawning(server, "b", path=path):
                (request,) = await listed(server, "requests")
                denied = json.loads(await keephold(server, "deny", request["id"], "--reason", "not again", "--json"))
                assert (denied["decision"], denied["request"]["arguments"]["path"]) == ("deny", path)
                assert "not again" in await keephold(server, "show", "b")
