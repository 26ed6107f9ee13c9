"""A page of somebody else, open in the browser of a person who is let in, can do and see nothing (K1), even if it knows
the dashboard's name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import expect
from tests.browser.browsing import WIDE, browser
from tests.browser.scene import agent
from tests.serve.serving import Served


@asynccontextmanager
async def page_of_others(html: str) -> AsyncIterator[str]:
    """Where that page is served: another origin."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = html.encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://localhost:{port}/"


ATTACK = """<!doctype html><title>nice</title>
<iframe id="frame" src="{base}/"></iframe>
<form id="form" method="post" action="{base}/do/handles/{uid}/abort"></form>
<p id="told">nothing yet</p>
<script>
(async () => {{
    const told = [];
    for (const [path, options] of [
        ["/api/handles", {{credentials: "include"}}],
        ["/api/handles/{uid}/abort", {{method: "POST", credentials: "include"}}],
        ["/api/handles/{uid}/abort", {{method: "POST", mode: "no-cors", credentials: "include"}}],
        ["/do/handles/{uid}/abort", {{method: "POST", mode: "no-cors", credentials: "include"}}],
        ["/mcp", {{method: "POST", mode: "no-cors", credentials: "include", body: "{{}}"}}],
    ]) {{
        try {{ told.push(await (await fetch("{base}" + path, options)).text()); }} catch (error) {{ told.push(""); }}
    }}
    const events = new EventSource("{base}/api/events?after=0", {{withCredentials: true}});
    events.onmessage = () => told.push("an event");
    await new Promise(done => events.onerror = done);
    document.getElementById("told").textContent = "told: " + told.join("");
}})();
</script>"""


async def test_K1_the_page_of_another_reads_nothing_and_does_nothing(workshop: Served) -> None:
    async with agent(workshop) as assistant, browser() as chromium:
        uid = await assistant.spawn("build", "app", target="app")
        context = await chromium.new_context(viewport={"width": WIDE.width, "height": WIDE.height})
        let_in = await context.new_page()
        await let_in.goto(workshop.entry)
        await expect(let_in.get_by_role("link", name="app", exact=True).first).to_be_visible()
        async with page_of_others(ATTACK.format(base=workshop.dashboard, uid=uid)) as address:
            evil = await context.new_page()
            await evil.goto(address)
            await expect(evil.locator("#told")).to_have_text("told: ")
            frame = evil.frame_locator("#frame")
            await expect(frame.get_by_role("heading", name="Needs you")).to_have_count(0)
            async with evil.expect_navigation():
                await evil.evaluate("document.getElementById('form').submit()")
        assert (await assistant.call("build", action="fetch", id="app"))["state"] == "running"
        await let_in.reload()
        await expect(let_in.get_by_role("link", name="app", exact=True).first).to_be_visible()
        await context.close()
