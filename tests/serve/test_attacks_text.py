"""What tools say is text and nothing else, and what is secret is said nowhere (K4, K5)."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.workshop import CONFIG
from tests.mcp.clients import connected, read
from tests.patience import PATIENCE
from tests.serve.serving import TOKEN, Served, environment, served
from tests.serve.wire import entered, send

EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\"'></textarea></title>{{7*7}}"
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1bP+q\x1b\\\x9b31m\x00\x08\x7f‮over"
)
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("text"), CONFIG, talkative=True) as server:
        yield server


async def spoken(server: Served) -> dict[str, str]:
    """Handles that say evil things everywhere they can, by id."""
    async with connected(server.mcp, token=TOKEN) as client:
        await client.call_tool("shout", {"action": "spawn", "id": "<b>bold</b>", "text": EVIL})
        await client.call_tool("shout", {"action": "spawn", "id": "x", "text": EVIL})
        await client.call_tool("publish", {"action": "spawn", "id": "asks", "version": EVIL})
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "hook", "metadata": {EVIL: EVIL}})
        await client.call_tool("await", {"all": ["x", "<b>bold</b>"]})
    async with server.client() as http:
        handles = (await http.get("/api/handles", params={"limit": 50})).json()["handles"]
    return {handle["id"]: handle["uid"] for handle in handles}


async def test_K4_HTML_of_a_tool_is_shown_as_it_is_written(server: Served) -> None:
    uids = await spoken(server)
    async with server.client() as http:
        conversations = [each["id"] for each in (await http.get("/api/conversations")).json()["conversations"]]
    paths = [
        "/",
        "/handles",
        "/handles?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/notifications",
        "/keys",
        "/conversations",
    ]
    paths += [f"/handles/{uid}" for uid in uids.values()] + [f"/conversations/{id}" for id in conversations]
    seen = False
    for path in paths:
        answered = await send(server, path)
        assert answered.status == 200, path
        assert not re.search(
            r"<script>alert|<img src=x|<b>bold|</title>\{|</textarea>\{|</textarea></title>", answered.text
        ), path
        assert "49</title>" not in answered.text
        assert not CONTROLS.search(answered.text), path
        seen |= "&lt;script&gt;alert(1)" in answered.text
    assert seen


async def test_K4_the_API_gives_what_was_said_as_JSON_or_as_plain_text(server: Served) -> None:
    uids = await spoken(server)
    answered = await send(server, f"/api/handles/{uids['x']}/output")
    assert answered.all("content-type") == ["application/json"]
    raw = await send(server, f"/api/handles/{uids['x']}/output?format=raw")
    (kind,) = raw.all("content-type")
    assert not kind.startswith(("text/html", "image/svg", "application/xhtml"))
    assert raw.all("x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize("words", [["ps"], ["show", "x"], ["logs", "x"], ["ps", "--all"]])
async def test_K4_the_terminal_of_a_person_is_not_written_to(server: Served, words: list[str]) -> None:
    await spoken(server)
    command = [sys.executable, "-W", "error", "-m", "keephold", *words, "--store", f"sqlite:///{server.store}"]
    done = subprocess.run(
        command, cwd=server.directory, env=environment(server.directory), capture_output=True, timeout=PATIENCE
    )
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, said
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", said)


async def test_K5_tokens_and_keys_are_in_no_log(tmp_path: Path) -> None:
    """At the most talkative level, whatever goes wrong."""
    with served(tmp_path, CONFIG, "--quiet", talkative=True) as server:
        async with connected(server.mcp, token=TOKEN) as client:
            made = read(await client.call_tool("create_wait_handle", {"handleId": "h", "type": "hook"}))
            key = made["key"]
            for target in (f"/?token={TOKEN}", f"/handles?token={TOKEN}", f"/api/handles?token={TOKEN}", "/nothing"):
                await send(server, target)
            for body in (b"", b"{", b'{"status":"maybe"}', b'{"status":"ok","payload":"s3cr3t"}', b'{"status":"ok"}'):
                await send(server, f"/complete/{key}", method="POST", token=False, body=body)
            await send(server, f"/complete/{key[:-1]}", method="POST", token=False, body=b"{}")
            await send(server, f"/complete/{key}/more", method="POST", token=False, body=b"{}")
            seen = [await send(server, path) for path in ("/metrics", "/keys", "/", "/api/keys")]
            cookie = (await entered(server)).partition(";")[0]
            mine = {"Host": server.host, "Cookie": cookie}
            seen += [await send(server, path, headers=mine, token=False) for path in ("/", "/sessions")]
            uid = json.loads((await send(server, "/api/handles")).body)["handles"][0]["uid"]
            seen.append(await send(server, f"/handles/{uid}"))
            seen.append(await send(server, f"/api/handles/{uid}"))
        for answered in seen:
            assert answered.status == 200
            assert key not in answered.text and TOKEN not in answered.text
            assert cookie.partition("=")[2] not in answered.text and ".localhost:" not in answered.text
    said = server.said.read_text()
    assert server.host.partition(":")[0] not in said and cookie.partition("=")[2] not in said
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files if cookie.partition("=")[2].encode() in file.read_bytes()]
    assert key not in said and TOKEN not in said and "s3cr3t" not in said


async def test_K5_the_token_that_was_made_is_not_printed_where_no_terminal_is(tmp_path: Path) -> None:
    with served(tmp_path, "", talkative=True, env={}) as server:
        token = server.made_token()
        assert len(token) >= 32
        answered = await send(server, f"/?token={token}", token=False)
        assert answered.all("location")[0].startswith(f"{server.dashboard}/login?ticket=")
    assert token not in server.said.read_text()


async def test_K5_no_tool_has_the_token(tmp_path: Path) -> None:
    """It comes by the environment, which commands inherit; a model that runs one must not find it there."""
    show = """
[conversation.tools.show]
source = "local"
command = ["env"]
run = "unattended"
"""
    with served(tmp_path, show) as server:
        async with connected(server.mcp, token=TOKEN) as client:
            shown = json.dumps((await client.call_tool("show", {})).model_dump(mode="json"))
            assert "PATH=" in shown and TOKEN not in shown
