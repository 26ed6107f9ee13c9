"""Prompts are not answered by accident: no press counts just after a card has appeared or moved, and nothing is allowed
that was not seen. The page's clock is the test's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Locator, Page, expect
from tests.browser.browsing import LOOKS, WIDE, Look, axe, browser, drawn, page, press
from tests.browser.scene import Agent, agent
from tests.browser.test_options import click
from tests.serve.serving import Served

OPEN = 31
QUIET = 700
"""Milliseconds for which a prompt takes no press."""
LONG = " ".join(f"host-{number:04}" for number in range(1500))


async def hosts(server: Served) -> list[str]:
    """The open prompts, by the server."""
    async with server.client() as http:
        return [each["arguments"]["host"] for each in (await http.get("/api/requests")).json()]


@asynccontextmanager
async def prompted(
    server: Served, *asked: str, look: Look = WIDE, scripts: bool = True
) -> AsyncIterator[tuple[Agent, Page]]:
    """A page with open prompts on it, where no time passes by itself unless it is `resumed`."""
    async with (
        agent(server) as assistant,
        browser() as chromium,
        page(chromium, look, entry=server.entry, java_script_enabled=scripts) as tab,
    ):
        for number, host in enumerate(asked):
            assistant.spawning("deploy", f"d-{number}", host=host)
        while len(await hosts(server)) < len(asked):  # noqa: ASYNC110 (another process asks)
            await asyncio.sleep(0.05)
        if scripts:
            await tab.clock.install()
            await tab.goto(server.dashboard)
            await tab.clock.pause_at(await tab.evaluate("Date.now() + 60_000"))
            await tab.reload()
        else:
            await tab.goto(server.dashboard)
        await expect(tab.get_by_role("article")).to_have_count(len(asked))
        yield assistant, tab


def allow(tab: Page, at: int = 0) -> Locator:
    return tab.get_by_role("article").nth(at).get_by_role("button", name="Allow", exact=True)


async def test_P1_clicks_at_one_spot_approve_only_what_was_seen(workshop: Served) -> None:
    asked = [f"web-{number}" for number in range(OPEN)]
    async with prompted(workshop, *asked) as (_, tab):
        order = await hosts(workshop)
        place = await allow(tab).bounding_box()
        for count in (1, 2, 3):  # the page has just appeared
            await click(tab, place, count)
        await tab.clock.run_for(QUIET - 1)  # each of these presses starts the pause again
        await click(tab, place)
        assert await hosts(workshop) == order
        await tab.clock.run_for(QUIET)
        await expect(allow(tab)).to_be_enabled()
        await click(tab, place)
        await expect(tab.get_by_role("article")).to_have_count(OPEN - 1)
        assert await allow(tab).bounding_box() == place  # another card is there now
        for count in (2, 3, 1, 1):
            await click(tab, place, count)
            await tab.clock.run_for(QUIET // 2)
        assert await hosts(workshop) == order[1:]
        await expect(tab.get_by_role("article")).to_have_count(OPEN - 1)
        await tab.clock.run_for(QUIET)
        await click(tab, place)
        await expect(tab.get_by_role("article")).to_have_count(OPEN - 2)
        assert await hosts(workshop) == order[2:]


async def test_P1_a_card_that_moves_takes_no_press_for_a_moment(workshop: Served) -> None:
    """Whatever moves it: a change of the page that nothing reports is found at the press."""
    async with prompted(workshop, "one", "two") as (_, tab):
        await tab.clock.run_for(QUIET)
        for change in (
            "document.querySelector('main').prepend(document.createElement('hr'))",
            "document.querySelector('.request').style.marginTop = '9px'",
            "document.styleSheets[0].insertRule('main { padding-top: 60px !important }')",
        ):
            await expect(allow(tab, 1)).to_be_enabled()
            await tab.evaluate(change)
            await allow(tab, 1).press("Enter")
            await tab.keyboard.press("Enter")
            await tab.clock.run_for(QUIET)
        assert await hosts(workshop) == ["one", "two"]
        await tab.evaluate("scrollTo(0, 40)")  # the user has moved it
        await tab.clock.run_for(20)
        await expect(allow(tab, 1)).to_be_enabled()
        await allow(tab, 1).press("Enter")
        await expect(tab.get_by_role("article")).to_have_count(1)
        assert await hosts(workshop) == ["one"]


async def test_P1_long_arguments_are_allowed_when_all_of_them_were_on_the_screen(workshop: Served) -> None:
    for look, name in ((WIDE, "wide"), (LOOKS[-1], "narrow")):
        async with prompted(workshop, LONG, look=look) as (assistant, tab):
            box = tab.get_by_role("region", name="Arguments of deploy")
            note = tab.get_by_role("article").locator("[data-unseen]").first
            deny = tab.get_by_role("article").get_by_role("button", name="Deny").first
            await tab.clock.resume()
            await expect(deny).to_be_enabled()
            await expect(allow(tab)).to_be_disabled()
            await expect(note).to_contain_text("lines not seen yet")
            await allow(tab).press("Enter")
            await box.evaluate("box => box.scrollTo(0, box.scrollHeight)")  # the end alone is not all of it
            await tab.wait_for_function("document.querySelector('.box').scrollTop > 0")
            await allow(tab).press("Enter")
            await expect(allow(tab)).to_be_disabled()
            assert await hosts(workshop) == [LONG]
            assert await axe(tab) == []
            step = "box => { box.scrollTop += 200; return box.scrollTop + box.clientHeight < box.scrollHeight - 1; }"
            for _ in range(5):  # a busy browser may skip a frame: read again what it has not drawn
                await box.evaluate("box => box.scrollTo(0, 0)")
                await drawn(tab)
                while await box.evaluate(step):
                    await drawn(tab)
                await drawn(tab)
                if await note.inner_text() == "You have seen all of it.":
                    break
            await expect(note).to_have_text("You have seen all of it.")
            await press(allow(tab), "Enter")
            await expect(tab.get_by_role("article")).to_have_count(0)
            assert str(await assistant.result("d-0")).startswith("deployed to host-0000"), name


async def test_P1_without_scripts_long_arguments_are_all_on_the_page_and_the_user_says_so(workshop: Served) -> None:
    async with prompted(workshop, LONG, scripts=False) as (_, tab):
        box = tab.get_by_role("region", name="Arguments of deploy")
        assert await box.evaluate("box => box.scrollHeight <= box.clientHeight")
        await allow(tab).click()
        await expect(tab.get_by_role("alert")).to_contain_text("look at all of the lines")
        await tab.get_by_role("checkbox", name="I have seen all of the").first.check()
        await allow(tab).click()
        await expect(tab.get_by_role("article")).to_have_count(0)


async def test_P1_cards_of_one_tool_are_answered_by_keys_and_together_once_they_were_seen(workshop: Served) -> None:
    """y and n answer the selected card and go to the next; those that were seen as a whole are allowed at once."""
    asked = [f"web-{number}" for number in range(6)]
    async with prompted(workshop, *asked) as (_, tab):
        order = await hosts(workshop)
        together = tab.get_by_role("button", name="that you have seen")
        await tab.keyboard.press("r")
        first = tab.get_by_role("article").first
        await expect(first.get_by_role("heading")).to_be_focused()
        await tab.keyboard.press("y")  # too early: the page has just appeared
        assert await hosts(workshop) == order
        await tab.clock.run_for(2 * QUIET)
        await tab.keyboard.press("y")
        await expect(tab.get_by_role("article")).to_have_count(5)
        await expect(tab.get_by_role("article").first.get_by_role("heading")).to_be_focused()
        await tab.clock.run_for(2 * QUIET)
        await tab.keyboard.press("n")
        await expect(tab.get_by_role("article")).to_have_count(4)
        await tab.keyboard.press("e")
        await expect(tab.get_by_role("article").first.get_by_role("textbox").last).to_be_focused()
        assert await hosts(workshop) == order[2:]
        await tab.reload()
        await expect(tab.get_by_role("article")).to_have_count(4)
        await tab.evaluate("scrollTo(0, 0)")
        await tab.clock.run_for(QUIET)
        seen = int((await together.inner_text()).split()[1])
        assert 0 < seen < 4, "the last ones are below the window"
        await tab.clock.run_for(2 * QUIET)
        await together.press("Enter")
        await expect(tab.get_by_role("article")).to_have_count(4 - seen)
        assert await hosts(workshop) == order[2 + seen :]
        await tab.clock.resume()
        assert await axe(tab) == []
        await tab.get_by_text("Deny all…").click()
        await press(tab.get_by_role("button", name=f"Deny all {4 - seen}"))
        await expect(tab.get_by_text("Nothing needs you.")).to_be_visible()
