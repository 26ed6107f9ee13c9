"""The dashboard of several servers on one PostgreSQL store: each request of a browser gets to another one (K9, M3)."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from tests.interop.shipped import Proxy, behind_proxy
from tests.mcp.clients import connected
from tests.patience import PATIENCE, until
from tests.serve.serving import TOKEN, Served, environment

CONFIG = """
[conversation.tools."*"]
run = "unattended"

[conversation.tools.asks]
source = "local"
command = ["sh", "-c", "echo allowed"]
run = "ask"

[conversation.tools.confirm_delete]
source = "python"
function = "tests.interop.jobs:confirm_delete"
"""


class Person:
    """A browser, without its scripts: it has a cookie, and says where its requests come from."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.headers: dict[str, str] = {}
        self._http = http

    async def log_in(self, proxy: Proxy) -> None:
        to_ticket = await self._http.get(f"http://localhost:{proxy.port}/?token={TOKEN}")
        place = urlsplit(to_ticket.headers["location"])
        made_by, self.headers = proxy.last, {"Host": place.netloc, "Origin": f"http://{place.netloc}"}
        entered = await self.get(proxy.port, f"{place.path}?{place.query}")
        assert entered.status_code == 200 and proxy.last is not made_by, "a ticket of one server begins it at another"
        self.headers["Cookie"] = entered.headers["set-cookie"].partition(";")[0]
        again = await self.get(proxy.port, f"{place.path}?{place.query}")
        assert again.status_code == 401, "a ticket is good once, at all servers together"

    async def get(self, port: int, path: str) -> httpx2.Response:
        return await self._http.get(f"http://localhost:{port}{path}", headers=self.headers)

    async def post(self, port: int, path: str, **fields: str) -> httpx2.Response:
        return await self._http.post(f"http://localhost:{port}{path}", headers=self.headers, data=fields)

    async def decide(self, proxy: Proxy, tool: str, **said: str) -> None:
        """Decide what a tool asks for: by the page of one server, at another one."""
        living = [each for each in proxy.servers if each.process.poll() is None]

        async def is_known() -> bool:
            listed = [await self.get(each.port, "/api/requests") for each in living]
            return all(tool in [request["tool"] for request in each.json()] for each in listed)

        await until(is_known)
        page = (await self.get(proxy.port, "/")).text
        made_by = proxy.last
        (action,) = set(re.findall(r'action="(/do/requests/[^"]+)"', page))
        hidden = dict(re.findall(r'<input type="hidden" name="(card|digest)" value="([^"]+)"', page))
        done = await self.post(proxy.port, action, **hidden, **said)
        assert done.status_code == 303 and "said=gone" not in done.headers["location"], done.text
        assert proxy.last is not made_by

    @asynccontextmanager
    async def events(self, port: int, after: int | None = None) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of the dashboard's stream."""
        last = {} if after is None else {"Last-Event-ID": str(after)}
        url = f"http://localhost:{port}/api/events"
        async with self._http.stream("GET", url, headers=self.headers | last) as stream:
            assert stream.status_code == 200
            lines = stream.aiter_lines()
            assert await anext(lines) == ": keephold"
            yield (json.loads(line[6:]) async for line in lines if line.startswith("data: {"))


async def created(events: AsyncIterator[dict[str, Any]], id: str) -> int:
    """The number of the event that a handle was created."""
    async for event in events:
        if event.get("type") == "handle.created" and f'"{id}"' in json.dumps(event):
            return int(event["seq"])
    raise AssertionError(f"the stream ended before `{id}`")


async def test_K9_a_session_works_at_every_server_and_outlives_the_one_that_began_it(
    tmp_path: Path, postgres: str
) -> None:
    async with (
        behind_proxy(tmp_path, CONFIG, 3, "--store", postgres) as proxy,
        httpx2.AsyncClient(timeout=PATIENCE) as http,
        asyncio.timeout(3 * PATIENCE),
    ):
        proxy.adds_token = False
        person, port = Person(http), proxy.port
        await person.log_in(proxy)
        async with person.events(port) as events:
            showing = proxy.last
            beginning, running = [each for each in proxy.servers if each is not showing]
            async with connected(running.mcp, token=TOKEN) as client:
                await client.call_tool("create_wait_handle", {"handleId": "first", "type": "custom"})
                seen = await created(events, "first")
                permitted = asyncio.create_task(client.call_tool("asks", {}))
                await person.decide(proxy, "asks", decision="approve")
                assert text_of(await permitted) == "allowed\n"
                showing.kill()  # the stream ends, and the browser opens it again at another one
                await client.call_tool("create_wait_handle", {"handleId": "second", "type": "custom"})
                beginning.kill()
                beginning.restart()
                async with person.events(port, after=seen) as resumed:
                    await created(resumed, "second")
                answered = asyncio.create_task(client.call_tool("confirm_delete", {"filename": "a"}))
                await person.decide(proxy, "confirm_delete", decision="answer", value="true")
                assert "a" in text_of(await answered)
        for _ in range(4):
            handles = await person.get(port, "/handles")
            assert handles.status_code == 200 and "first" in handles.text and "second" in handles.text
        shown = await person.get(port, "/sessions")
        (session,) = set(re.findall(r'name="id" value="(\w+)"', shown.text))
        assert (await person.post(port, "/do/sessions/end", id=session)).status_code == 303
        showing.restart()
        await has_ended(person, proxy.servers)
        await person.log_in(proxy)
        assert await logged_out(tmp_path, postgres) == "ended 1 session\n"
        await has_ended(person, proxy.servers, 403)  # the name has changed, too


async def test_P6_the_stream_of_the_server_that_asks_tells_when_other_servers_can_show_the_request(
    tmp_path: Path, postgres: str
) -> None:
    """A page that hears of a request is fetched at any server. If that one cannot read the request yet, the page must
    hear of it again, or it would not show the card until something else happens."""
    async with (
        behind_proxy(tmp_path, CONFIG, 2, "--store", postgres) as proxy,
        httpx2.AsyncClient(timeout=PATIENCE) as http,
        asyncio.timeout(2 * PATIENCE),
    ):
        proxy.adds_token = False
        person = Person(http)
        await person.log_in(proxy)
        asks, other = proxy.servers
        async with person.events(asks.port) as events, connected(asks.mcp, token=TOKEN) as client:

            async def fetched(count: int) -> None:
                """Until a fetch that an announcement of requests has caused finds that many at the other server."""
                async for event in events:
                    listed = (await person.get(other.port, "/api/requests")).json() if "open" in event else None
                    if listed is not None and len(listed) == count:
                        return

            asking = asyncio.create_task(client.call_tool("asks", {}))
            await fetched(1)
            asking.cancel()  # the prompt is withdrawn
            await fetched(0)


async def logged_out(directory: Path, store: str) -> str:
    """What `keephold logout` prints."""
    command = [sys.executable, "-m", "keephold", "logout", "--store", store]
    ended = await asyncio.to_thread(subprocess.run, command, env=environment(directory), capture_output=True, text=True)
    assert not ended.returncode, ended
    return ended.stdout


async def has_ended(person: Person, servers: list[Served], status: int = 401) -> None:
    for server in servers:
        assert (await person.get(server.port, "/api/handles")).status_code == status
        assert (await person.post(server.port, "/do/keys/revoke", conversation="none")).status_code == status


def text_of(result: Any) -> str:
    return str(result.content[0].text)
