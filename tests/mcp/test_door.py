"""Who is let in over HTTP, and what needs nothing but its key (K1, K2, K5, K6)."""

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.mcp.clients import MODERN, connected, read, texts
from tests.mcp.serving import Office, Process, serving
from tests.patience import PATIENCE

TOKEN = "t" * 32
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}]
)
async def test_K1_without_the_token_there_is_nothing(headers: dict[str, str]) -> None:
    async with serving(tokens={"default": TOKEN}) as here, httpx2.AsyncClient(timeout=PATIENCE) as http:
        for method, path in (("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("GET", "/"), ("GET", "/nothing")):
            answered = await http.request(method, here.base + path, headers=headers)
            assert answered.status_code == 401, (method, path)
            assert answered.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in answered.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "evil.example:80"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "https://127.0.0.1.evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://["},
        {"Origin": ""},
    ],
)
async def test_K1_other_names_and_other_pages_are_refused(headers: dict[str, str]) -> None:
    async with serving() as here, httpx2.AsyncClient(timeout=PATIENCE) as http:
        for path in ("/mcp", "/complete/some-key"):
            answered = await http.post(here.base + path, json=PING, headers=headers)
            assert answered.status_code == 403


async def test_K1_its_own_page_and_its_own_names_are_let_in() -> None:
    async with serving() as here, httpx2.AsyncClient(timeout=PATIENCE) as http:
        port = here.base.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost", "LocalHost", "[::1]"):
            for origin in (None, f"http://{host}:{port}"):
                headers = {"Host": f"{host}:{port}"} | ({} if origin is None else {"Origin": origin})
                answered = await http.post(f"{here.base}/complete/none", json={"status": "ok"}, headers=headers)
                assert answered.status_code == 404


def test_K1_the_network_is_not_let_in_without_a_token(office: Office, tmp_path: Path) -> None:
    hosts = ("0.0.0.0", "::")
    for server in [office.start("--http", "0", "--host", host, stderr=subprocess.PIPE) for host in hosts]:
        _, said = server.communicate(timeout=PATIENCE)
        assert server.returncode == 2
        assert b"KEEPHOLD_TOKEN" in said and b"--tokens" in said and b"Traceback" not in said


def test_K5_a_token_that_others_can_read_or_guess_is_refused_and_not_shown(office: Office, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("alice s3cr3t\n")
    for mode, why in ((0o640, b"can be read by others"), (0o600, b"alice")):
        (tmp_path / "tokens").chmod(mode)
        server = office.start("--http", "0", "--tokens", str(tmp_path / "tokens"), stderr=subprocess.PIPE)
        _, said = server.communicate(timeout=PATIENCE)
        assert server.returncode == 2
        assert why in said and b"s3cr3t" not in said and b"Traceback" not in said


async def test_K2_a_key_is_good_once_and_needs_no_token(office: Office, tmp_path: Path) -> None:
    (tmp_path / "tokens").touch(0o600)
    (tmp_path / "tokens").write_text(f"# who may\nalice {TOKEN}\n")
    server = Process(office, "--tokens", str(tmp_path / "tokens"))
    async with httpx2.AsyncClient(timeout=PATIENCE) as http, connected(server.url, token=TOKEN) as client:
        made = read(await client.call_tool("create_wait_handle", {"handleId": "h", "type": "hook"}))
        key = made["key"]
        assert made["completeUrl"] == f"{server.base}/complete/{key}"
        ok = {"status": "ok", "payload": {"n": 1}}
        forged = key[:-4] + ("AAAA" if key[-4:] != "AAAA" else "BBBB")
        for wrong in (forged, key[1:], "x", "%00", "a" * 5000):
            answered = await http.post(f"{server.base}/complete/{wrong}", json=ok)
            assert (answered.status_code, answered.json()) == (404, {"status": "unknown_or_revoked"})
        for bad in (b"", b"{", b"[1]", b'{"status":"maybe"}', b"[" * 100_000):
            answered = await http.post(f"{server.base}/complete/{key}", content=bad)
            assert answered.status_code == 400, bad[:20]
            assert key not in answered.text
        answered = await http.post(f"{server.base}/complete/{key}", content=b" " * (1024 * 1024 + 1))
        assert answered.status_code == 413
        answered = await http.post(made["completeUrl"], json=ok)
        assert (answered.status_code, answered.json()) == (200, {"status": "accepted"})
        answered = await http.post(made["completeUrl"], json={"status": "ok", "payload": 2})
        assert answered.status_code == 409
        assert answered.json() == {"status": "already_resolved", "terminal": ok}
        assert read(await client.call_tool("wait_for", {"handleId": "h"}))["result"] == {"n": 1}
        assert (await http.get(made["completeUrl"])).status_code == 405
    said = server.said.read_text()
    assert key not in said and TOKEN not in said and "Traceback" not in said
    assert key.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("said*"))


async def test_K5_the_token_is_no_secret_of_the_tools(tmp_path: Path) -> None:
    """It comes by the environment, which commands inherit; a model that runs one must not find it there."""
    show = """
[conversation.tools.show]
source = "local"
command = ["printenv", "KEEPHOLD_TOKEN"]
run = "unattended"
"""
    office = Office(tmp_path, show)
    try:
        server = Process(office, env={"KEEPHOLD_TOKEN": TOKEN})
        async with connected(server.url, token=TOKEN) as client:
            shown = await client.call_tool("show", {})
            assert TOKEN not in str(shown)
    finally:
        office.close()


async def test_K6_a_request_that_is_too_large_is_refused_and_nothing_is_lost() -> None:
    async with serving() as here, httpx2.AsyncClient(timeout=PATIENCE) as http, connected(here.url) as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        for version in (MODERN, "2025-11-25"):
            headers = {"Mcp-Protocol-Version": version, "Accept": "application/json, text/event-stream"}
            answered = await http.post(here.url, content=b" " * (16 * 1024 * 1024 + 1), headers=headers)
            assert answered.status_code == 413
        large = await client.call_tool("echo", {"text": "x" * (1024 * 1024 + 1)})
        assert large.is_error and "arguments_bytes" in texts(large)[0] and len(texts(large)[0]) < 1000
        assert read(await client.call_tool("wait_for", {"handleId": "h", "timeoutMs": 0}))["status"] == "timeout"


@pytest.mark.parametrize("depth", [65, 5000, 200_000])
async def test_K6_deep_nesting_is_an_error_like_any_other(depth: int) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
    }
    params: dict[str, Any] = {
        "name": "complete_wait_handle",
        "arguments": {"handleId": "h", "result": 0},
        "_meta": meta,
    }
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    deep = message.replace('"result": 0', f'"result": {"[" * depth}{"]" * depth}')
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "complete_wait_handle",
    }
    async with serving() as here, httpx2.AsyncClient(timeout=PATIENCE) as http, connected(here.url) as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        answered = await http.post(here.url, content=deep, headers=headers)
        assert answered.status_code in (200, 400)
        said = answered.json()
        assert said.get("error") is not None or said["result"]["isError"] is True
        assert read(await client.call_tool("wait_for", {"handleId": "h", "timeoutMs": 0}))["status"] == "timeout"
        assert here.idle()
