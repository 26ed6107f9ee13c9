"""Those who want the owner's session: page servers on other ports, and programs where the browser will look (K9)."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import expect
from tests.browser.browsing import browser, enter, page
from tests.mcp.clients import connected, read
from tests.mcp.serving import Office, Process
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.serve.serving import TOKEN, Served, environment, serve, served
from tests.serve.wire import connection, entered, send


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as server:
        yield server


class Pages:
    """A page server on both loopback addresses that notes what browsers send it. It sets cookies of our name, too."""

    def __init__(self, target: Served) -> None:
        self.port = free_port()
        self.heard: list[dict[str, str]] = []
        self._target = target

    def address(self, name: str) -> str:
        return f"http://{name}:{self.port}/"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            pairs = (line.partition(":") for line in head.split("\r\n")[1:])
            self.heard.append({name.lower(): value.strip() for name, _, value in pairs})
            frames = "".join(
                f'<iframe src="{self.address(name)}frame"></iframe><img src="{self.address(name)}image">'
                for name in ("127.0.0.1", "localhost", "guess.localhost", "[::1]")
                if " / " in head.partition("\r\n")[0]
            )
            told = "<script>document.title = `${document.referrer}|${window.opener}|`</script>"
            body = f"<!doctype html><title>nice</title><h1>nice</h1>{frames}{told}".encode()
            toss = "Set-Cookie: keephold=tossed; Path=/"
            lines = ["HTTP/1.1 200 OK", "Content-Type: text/html", f"Content-Length: {len(body)}", "Connection: close"]
            lines += [toss, f"{toss}; Domain=localhost", "", ""]
            writer.write("\r\n".join(lines).encode() + body)
            await writer.drain()
        writer.close()

    def cookies(self) -> set[str]:
        """Each cookie that it got, whatever its name."""
        given = (each for heard in self.heard for each in heard.get("cookie", "").split(";"))
        return {each.strip() for each in given if each.strip()}


@asynccontextmanager
async def pages_of_others(target: Served) -> AsyncIterator[Pages]:
    pages = Pages(target)
    async with AsyncExitStack() as stack:
        for address in ("127.0.0.1", "::1"):
            await stack.enter_async_context(await asyncio.start_server(pages.answer, address, pages.port))
        yield pages


async def test_K9_a_page_on_another_port_gets_no_cookie_that_works(server: Served) -> None:
    async with pages_of_others(server) as others, browser() as chromium, page(chromium, entry=server.entry) as tab:
        await expect(tab.get_by_role("heading", name="Needs you")).to_be_visible()
        own = server.host.partition(":")[0]
        assert tab.url == f"{server.dashboard}/"
        assert own not in await tab.content(), "the name could be read off a picture, or be copied to others"
        for name in ("127.0.0.1", "localhost", "guess.localhost"):
            typed = await tab.context.new_page()
            await typed.goto(others.address(name))
            await expect(typed.get_by_role("heading", name="nice")).to_be_visible()
        linked = await tab.context.new_page()
        await enter(linked, server.dashboard)
        await linked.evaluate(f"location.href = '{others.address('guess.localhost')}'")
        await expect(linked.get_by_role("heading", name="nice")).to_be_visible()
        assert await linked.title() == "|null|", "no referrer, no opener"
        async with tab.context.expect_page() as opening:
            await tab.evaluate(f"window.open('{others.address('127.0.0.1')}')")
        opened = await opening.value
        await expect(opened.get_by_role("heading", name="nice")).to_be_visible()
        assert await opened.title() == "|null|"
        asked_for = {heard["host"] for heard in others.heard}
        assert {f"{name}:{others.port}" for name in ("127.0.0.1", "localhost", "guess.localhost")} <= asked_for
        assert not [heard for heard in others.heard if own in str(heard)], "nobody learns the name"
        for cookie in others.cookies() | {"keephold=tossed"}:
            for host in (server.host, f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
                stolen = await send(server, "/api/handles", headers={"Cookie": cookie, "Host": host}, token=False)
                assert stolen.status == 401, (cookie, host)
        await tab.goto(f"{server.dashboard}/handles")  # with all that was tossed
        await expect(tab.get_by_role("heading", name="Handles", level=1)).to_be_visible()
        assert logout(server).stdout == "ended 1 session\n"
        await expect(tab.get_by_role("link", name=f"{server.base}/")).to_be_visible()  # the open page notices it


async def test_K9_the_form_works_without_scripts_and_a_session_is_ended_on_its_page(server: Served) -> None:
    async with browser() as chromium, page(chromium, java_script_enabled=False) as tab:
        await tab.goto(f"{server.base}/handles")
        await tab.get_by_label("Token").fill("wrong")
        await tab.get_by_role("button", name="Open").click()
        await expect(tab.get_by_role("alert")).to_have_text("That is not the token of this server.")
        await tab.get_by_label("Token").fill(TOKEN)
        await tab.get_by_role("button", name="Open").click()
        await expect(tab).to_have_url(f"{server.dashboard}/")
        await entered(server)
        await tab.get_by_role("link", name="Sessions").click()
        await expect(tab.get_by_role("row").filter(has_text="this browser")).to_contain_text("Chrome on Linux")
        other = tab.get_by_role("row").filter(has_text="unknown browser")
        await other.get_by_role("button", name="End").click()
        await expect(other).to_have_count(0)
        await expect(tab.get_by_text("Logged out: that browser needs the token again.")).to_be_visible()
        before = server.dashboard
        await tab.get_by_text("End all…").click()
        await tab.get_by_role("button", name="End all sessions").click()
        await expect(tab.get_by_role("link", name=f"{server.base}/")).to_be_visible()
        assert tab.url.startswith(before) and server.dashboard != before
        await tab.get_by_role("link", name=f"{server.base}/").click()
        await tab.get_by_label("Token").fill(TOKEN)
        await tab.get_by_role("button", name="Open").click()
        await expect(tab).to_have_url(f"{server.dashboard}/")
        await tab.goto(f"{server.dashboard}/sessions")
        await tab.get_by_role("button", name="Log out").click()
        await expect(tab.get_by_label("Token")).to_be_visible()


def logout(server: Served, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "keephold", "logout", "--store", f"sqlite:///{server.store}", *words]
    return subprocess.run(command, env=environment(server.directory), capture_output=True, text=True, timeout=PATIENCE)


async def test_K9_sessions_outlive_the_server_and_end_by_logout(server: Served) -> None:
    async def status(cookie: str, host: str) -> int:
        return (await send(server, "/sessions", headers={"Cookie": cookie, "Host": host}, token=False)).status

    one, two = [(await entered(server)).partition(";")[0] for _ in range(2)]
    file, host = server.store.with_name("store.db-sessions"), server.host
    assert file.stat().st_mode & 0o777 == 0o600
    assert one.partition("=")[2] not in file.read_text()
    server.kill()
    server.restart()
    assert [await status(cookie, host) for cookie in (one, two)] == [200, 200]
    assert "there is no session `x`; there are:" in logout(server, "x").stderr
    shown = (await send(server, "/sessions")).text
    stream = {"Cookie": one, "Host": host, "Sec-Fetch-Site": "same-origin"}
    async with connection(server) as (reader, writer), asyncio.timeout(PATIENCE):
        lines = "".join(f"{name}: {value}\r\n" for name, value in stream.items())
        writer.write(f"GET /api/events HTTP/1.1\r\n{lines}\r\n".encode())
        await reader.readuntil(b": keephold\nretry: 1000\n\n")
        ended = logout(server)
        assert (ended.returncode, ended.stdout) == (0, "ended 2 sessions\n"), ended
        async with connected(server.mcp, token=TOKEN) as client:  # an event that the stream would carry
            await client.call_tool("create_wait_handle", {"handleId": "h", "type": "hook"})
        assert b"event:" not in await reader.readuntil(b"0\r\n\r\n"), "the stream ends before the event"
    assert shown.count("unknown browser") == 2
    assert [await status(cookie, host) for cookie in (one, two)] == [403, 403], "the name is another one, too"
    assert server.host != host
    assert [await status(cookie, server.host) for cookie in (one, two)] == [401, 401]
    three = (await entered(server)).partition(";")[0]
    assert await status(three, server.host) == 200
    assert len(json.loads(logout(server, "--json").stdout)["ended"]) == 1


def test_K9_nobody_waits_at_the_other_loopback_address(tmp_path: Path) -> None:
    """Browsers look for names below `.localhost` at both, and the one who is there gets the ticket and the cookie."""
    port = free_port()
    (tmp_path / "keephold.toml").write_text(f"[serve]\nport = {port}\n")
    serving = serve(tmp_path / "store.db", "--config", "keephold.toml")
    checking = [sys.executable, "-m", "keephold", "check", "--config", "keephold.toml"]
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        served, checked = (
            subprocess.run(each, cwd=tmp_path, env=environment(tmp_path), capture_output=True, timeout=PATIENCE)
            for each in (serving, checking)
        )
    assert served.returncode == 2
    assert f"cannot listen on ::1:{port}".encode() in served.stderr and b"--port" in served.stderr
    assert f"port {port} of ::1 is taken".encode() in checked.stdout + checked.stderr


async def test_K1_another_user_of_this_machine_cannot_use_mcp_over_http(tmp_path: Path) -> None:
    """The port is open to all users, and a tool runs with the rights of the one who started the server."""
    office = Office(tmp_path)
    try:
        server = Process(office)
        file = tmp_path / "store.db-token"
        assert file.stat().st_mode & 0o777 == 0o600
        hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with httpx2.AsyncClient(timeout=PATIENCE) as http:
            for headers in (
                {},
                {"Authorization": "Bearer"},
                {"Authorization": "Bearer wrong-and-long-enough-to-be-one"},
            ):
                for path in ("/mcp", "/", "/nothing"):
                    assert (await http.post(server.base + path, json=hello, headers=headers)).status_code == 401
            answered = await http.post(f"{server.base}/complete/none", json={"status": "ok"})
            assert answered.status_code == 404, "a key is enough for its wait"
        async with connected(server.url, token=server.token) as client:
            made = await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
            assert not made.is_error
        first, using = server.said.read_text().splitlines()
        assert first == f"MCP at {server.url} (token: {file})" and server.token not in using, "not the token, in a log"
        server.kill()
        server.start()
        async with connected(server.url, token=server.token) as client:
            listed = read(await client.call_tool("list_wait_handles", {}))
            assert [handle["id"] for handle in listed["handles"]] == ["h"], "the token is the same after a restart"
        assert server.token not in server.said.read_text()
    finally:
        office.close()


def test_K5_a_token_is_shown_to_a_terminal_alone(tmp_path: Path) -> None:
    office = Office(tmp_path)
    ours, theirs = os.openpty()
    try:
        office.start("--http", "0", stderr=theirs)
        said = b""
        while not said.endswith(b"\n"):
            said += os.read(ours, 1000)
        token = (tmp_path / "store.db-token").read_text().strip()
        assert said.startswith(b"MCP at http://127.0.0.1:") and f"(token: {token})".encode() in said.splitlines()[0]
    finally:
        office.close()
        os.close(ours)
        os.close(theirs)
