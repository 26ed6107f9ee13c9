"""A person takes an agent's terminal over, in the browser: types, is alone with it, and gives it back."""

from playwright.async_api import Page, expect
from tests.browser.browsing import LOOKS, WIDE, Camera, browser, page
from tests.browser.scene import Agent, agent
from tests.patience import PATIENCE
from tests.serve.serving import Served


async def refusal(assistant: Agent) -> str:
    """What the agent is told that types into the terminal; empty if it was let."""
    try:
        await assistant.call("shell", action="apply", id="shell", input="true\n")
    except AssertionError as error:
        return str(error)
    return ""


async def take_over(tab: Page) -> None:
    await tab.get_by_role("button", name="Take over").click()
    await expect(tab.get_by_role("button", name="Hand back")).to_be_visible()


async def test_a_person_types_into_a_terminal(workshop: Served, camera: Camera) -> None:
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        uid = await assistant.spawn("shell", "shell")
        await tab.goto(f"{workshop.dashboard}/handles/{uid}")
        await take_over(tab)
        await tab.keyboard.type("echo hi-$((20+3))")
        await tab.keyboard.press("Enter")
        await expect(tab.get_by_text("hi-23").first).to_be_visible()
        await camera.take(tab, "terminal-driven", WIDE)
        await expect(tab.get_by_role("button", name="PgDn")).to_have_count(0)  # this keyboard has the key
        assert "person" in await refusal(assistant)
        await tab.keyboard.type("sh -c 'echo be''gun; sleep 100'")
        await tab.keyboard.press("Enter")
        await expect(tab.get_by_text("begun").first).to_be_visible()  # before, the interrupt could miss it
        await tab.keyboard.press("Control+c")
        await tab.keyboard.type("echo done-$?")
        await tab.keyboard.press("ArrowLeft")
        await tab.keyboard.press("ArrowRight")
        await tab.keyboard.press("Enter")
        await expect(tab.get_by_text("done-130").first).to_be_visible()
        await tab.get_by_role("button", name="Hand back").click()
        await expect(tab.get_by_role("button", name="Take over")).to_be_visible()
        assert await refusal(assistant) == ""


async def test_a_second_person_is_refused_and_a_closed_tab_hands_back(workshop: Served) -> None:
    async with agent(workshop) as assistant, browser() as chromium:
        uid = await assistant.spawn("shell", "shell")
        async with page(chromium, WIDE, entry=workshop.entry) as second:
            place = f"{workshop.dashboard}/handles/{uid}"
            async with page(chromium, WIDE, entry=workshop.entry) as first:
                await first.goto(place)
                await second.goto(place)
                await take_over(first)
                await expect(second.get_by_role("button", name="Take over")).to_be_disabled(timeout=PATIENCE * 1000)
                await expect(second.get_by_role("button", name="Hand back")).to_have_count(0)
            await expect(second.get_by_role("button", name="Take over")).to_be_enabled(timeout=PATIENCE * 1000)
            await take_over(second)
            await second.keyboard.type("echo now-$((40+2))")
            await second.keyboard.press("Enter")
            await expect(second.get_by_text("now-42").first).to_be_visible()


async def test_it_can_be_used_on_a_phone(workshop: Served, camera: Camera) -> None:
    async with agent(workshop) as assistant, browser() as chromium:
        uid = await assistant.spawn("shell", "shell")
        look = LOOKS[-1]
        async with page(chromium, look, entry=workshop.entry, has_touch=True, is_mobile=True) as tab:
            await tab.goto(f"{workshop.dashboard}/handles/{uid}")
            await take_over(tab)
            await tab.keyboard.insert_text("echo typed-$((5+2))")
            await tab.keyboard.press("Enter")
            await expect(tab.get_by_text("typed-7").first).to_be_visible()
            await tab.keyboard.insert_text("false")
            await tab.get_by_role("button", name="Ctrl C").tap()
            await tab.keyboard.insert_text("echo left-$?")
            await tab.get_by_role("button", name="Enter").tap()
            await expect(tab.get_by_text("left-130").first).to_be_visible()
            await tab.evaluate("scrollTo(0, 250)")
            for name in ("Hand back", "PgDn"):
                await expect(tab.get_by_role("button", name=name)).to_be_in_viewport()
            await camera.take(tab, "terminal-driven", look)
