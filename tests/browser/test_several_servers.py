"""A browser at the dashboard of two servers on one PostgreSQL store, which are killed one after the other (K9, M3)."""

import asyncio
from pathlib import Path
from typing import Any

from playwright.async_api import expect
from tests.browser.browsing import browser, page, press
from tests.interop.shipped import behind_proxy
from tests.mcp.clients import connected
from tests.serve.serving import TOKEN
from tests.serve.test_several_dashboards import CONFIG


async def test_K9_an_open_page_goes_on_at_the_server_that_is_left(tmp_path: Path, postgres: str) -> None:
    async with behind_proxy(tmp_path, CONFIG, 2, "--store", postgres) as proxy:
        proxy.adds_token = False
        entry = f"http://localhost:{proxy.port}/?token={TOKEN}"
        async with browser() as chromium, page(chromium, entry=entry) as tab:
            await expect(tab.get_by_role("heading", name="Needs you")).to_be_visible()
            loaded = await tab.evaluate("window.performance.timeOrigin")
            for number, (dies, lives) in enumerate([proxy.servers, proxy.servers[::-1]]):
                dies.kill()
                async with connected(lives.mcp, token=TOKEN) as client:
                    await client.call_tool("create_wait_handle", {"handleId": f"handle-{number}", "type": "custom"})
                await expect(tab.get_by_role("link", name=f"handle-{number}", exact=True).first).to_be_visible()
                dies.restart()
            async with connected(proxy.servers[0].mcp, token=TOKEN) as client:
                asking = asyncio.create_task(client.call_tool("asks", {}))
                await press(tab.get_by_role("article").get_by_role("button", name="Allow", exact=True))
                said: Any = (await asking).content[0]
                assert said.text == "allowed\n", "the card came at once: after 30 s, the answer would be the handle"
            assert await tab.evaluate("window.performance.timeOrigin") == loaded, "nobody has loaded the page again"
            await tab.get_by_role("link", name="Sessions").click()
            await tab.get_by_role("button", name="Log out").click()
            await expect(tab.get_by_label("Token")).to_be_visible()
