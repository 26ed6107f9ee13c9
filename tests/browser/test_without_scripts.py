"""The dashboard in a browser that runs no scripts: everything can be read, and everything that asks can be answered."""

from playwright.async_api import expect
from tests.browser.browsing import WIDE, Camera, browser, page
from tests.browser.scene import agent, busy
from tests.browser.test_day import places
from tests.serve.serving import Served


async def test_every_page_can_be_read_and_a_handle_found_and_aborted(workshop: Served, camera: Camera) -> None:
    async with (
        agent(workshop) as assistant,
        browser() as chromium,
        page(chromium, WIDE, entry=workshop.entry, java_script_enabled=False) as tab,
    ):
        uids = await busy(assistant, workshop)
        for name, place in places(uids).items():
            await tab.goto(workshop.dashboard + place)
            await expect(tab.get_by_role("heading", level=1)).to_have_count(1)
            await camera.take(tab, f"{name}-without-scripts", WIDE)
        await tab.goto(f"{workshop.dashboard}/handles/{uids['shell']}")
        await expect(tab.get_by_text("ready", exact=True).first).to_be_visible()
        await tab.goto(f"{workshop.dashboard}/handles/{uids['app']}")
        await expect(tab.get_by_text("compiling app: part 1").first).to_be_visible()

        await tab.get_by_role("link", name="Handles").click()
        await tab.get_by_label("Search").fill("app")
        await tab.get_by_label("Tool", exact=True).fill("build")
        await tab.get_by_label("State").select_option("running")
        await tab.get_by_role("button", name="Show").click()
        await expect(tab.get_by_role("row")).to_have_count(2)
        await tab.get_by_role("link", name="app", exact=True).click()
        await tab.get_by_text("Abort…").click()
        await tab.get_by_role("button", name="Abort it").click()
        await expect(tab.get_by_role("heading", level=1)).to_contain_text("app")
        await expect(tab.get_by_text("Abort…")).to_have_count(0)
        waited = await assistant.call("await", all=["app"])
        assert waited["completed"][0]["state"] == "stopped"


async def test_everything_that_asks_is_answered(workshop: Served) -> None:
    async with (
        agent(workshop) as assistant,
        browser() as chromium,
        page(chromium, WIDE, entry=workshop.entry, java_script_enabled=False) as tab,
    ):
        await busy(assistant, workshop)
        await tab.goto(workshop.dashboard)
        publish = tab.get_by_role("article").filter(has_text="Where should 1.0 go?")
        await publish.get_by_role("button", name="production").click()
        await expect(publish).to_have_count(0)
        assert await assistant.result("publish") == "1.0 is on production"
        name = tab.get_by_role("article").filter(has_text="What shall it be called?")
        await name.get_by_role("textbox").fill("Otter")
        await name.get_by_role("button", name="Answer").click()
        await expect(name).to_have_count(0)
        assert await assistant.result("name") == "called Otter"
        for host, button, said in (("web-1", "Allow", "deployed to web-1\n"), ("web-2", "Deny", None)):
            asked = assistant.spawning("deploy", host, host=host)
            card = tab.get_by_role("article").filter(has_text=host)
            while not await card.count():  # without scripts, a person loads the page again
                await tab.reload()
            await card.get_by_role("button", name=button).first.click()
            await expect(card).to_have_count(0)
            if said is not None:
                await asked
                assert await assistant.result(host) == said


async def test_keys_are_revoked(workshop: Served) -> None:
    async with (
        agent(workshop) as assistant,
        browser() as chromium,
        page(chromium, WIDE, entry=workshop.entry, java_script_enabled=False) as tab,
    ):
        made = await assistant.call("create_wait_handle", handleId="approval", type="hook")
        await tab.get_by_role("link", name="Keys").click()
        assert made["key"] not in await tab.content()
        await tab.get_by_text("Revoke…").click()
        await tab.get_by_role("button", name="Revoke").click()
        await expect(tab.get_by_text("No open keys")).to_be_visible()
        async with workshop.client() as http:
            answered = await http.post(f"/complete/{made['key']}", json={"status": "ok"})
        assert answered.json() == {"status": "unknown_or_revoked"}
