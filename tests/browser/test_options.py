"""A question with a few options has a button for each: one click answers it, two are not an answer to the next."""

from typing import Any

from playwright.async_api import FloatRect, Locator, Page, expect
from tests.browser.browsing import WIDE, axe, browser, page, press
from tests.browser.scene import agent
from tests.serve.serving import Served


async def click(tab: Page, place: FloatRect | None, count: int = 1) -> None:
    """Press there, whatever is there; `count`: which click of several it is."""
    assert place is not None
    await tab.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    await tab.mouse.down(click_count=count)
    await tab.mouse.up(click_count=count)


async def asked(server: Served) -> list[str]:
    """What is open, by the server."""
    async with server.client() as http:
        return [need["question"]["text"] for need in (await http.get("/api/requests")).json()]


def question(tab: Page, text: str) -> Locator:
    return tab.get_by_role("article").filter(has_text=text)


async def test_the_second_click_of_a_double_click_is_no_answer_to_the_next_question(workshop: Served) -> None:
    """The page's clock is the test's: no time passes before the second click, however busy the machine is."""
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        uid = await assistant.spawn("survey", "s")
        await tab.clock.install()
        await tab.goto(f"{workshop.dashboard}/handles/{uid}")
        group = question(tab, "The first?").get_by_role("group", name="The first?")
        await expect(group.get_by_role("button")).to_have_count(2)
        assert await axe(tab) == []
        await tab.clock.pause_at(await tab.evaluate("Date.now() + 60_000"))
        first, other = (question(tab, text).get_by_role("button", name="two") for text in ("The first?", "The second?"))
        await expect(first).to_be_enabled()
        place = await first.bounding_box()
        await click(tab, place)
        while not await other.is_visible():  # a page that saw the answer before the next question looks again later
            await tab.clock.run_for(20)
        assert await other.bounding_box() == place
        await click(tab, place, 2)
        await assistant.spawn("shout", "noise", text="x")  # what a click would have sent is before this
        assert await asked(workshop) == ["The second?"]
        await tab.clock.resume()
        await press(other)
        await press(question(tab, "Is that all?").get_by_role("button", name="No"))
        assert await assistant.result("s") == "two, two, False"


async def test_Enter_beside_the_buttons_chooses_none_of_them(workshop: Served) -> None:
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        await assistant.spawn("survey", "s")
        for text in ("The first?", "The second?"):
            await press(question(tab, text).get_by_role("button", name="one"))
        card = question(tab, "Is that all?")
        await expect(card.get_by_role("button", name="Yes")).to_be_enabled()
        await press(card.get_by_role("checkbox"), "Enter", until=card.get_by_role("alert"))
        await expect(card.get_by_role("alert")).to_contain_text("nothing was chosen")
        await card.get_by_role("checkbox").press("Space")
        await expect(card.get_by_role("checkbox")).to_be_checked()
        assert await asked(workshop) == ["Is that all?"]
        await press(card.get_by_role("button", name="Yes"), "Enter")
        assert await assistant.result("s") == "one, one, True"


async def test_without_scripts_Enter_beside_the_buttons_answers_nothing(workshop: Served) -> None:
    async with (
        agent(workshop) as assistant,
        browser() as chromium,
        page(chromium, WIDE, entry=workshop.entry, java_script_enabled=False) as tab,
    ):
        await assistant.spawn("survey", "s")
        for text in ("The first?", "The second?"):
            await loaded_with(tab, question(tab, text))
            await question(tab, text).get_by_role("button", name="one").click()
            await expect(question(tab, text)).to_have_count(0)
        card = question(tab, "Is that all?")
        await loaded_with(tab, card)
        await card.get_by_role("checkbox").check()
        await card.get_by_role("checkbox").press("Enter")
        await expect(card.get_by_role("alert")).to_contain_text("nothing was chosen")
        await expect(card.get_by_role("checkbox")).to_be_checked()
        assert await asked(workshop) == ["Is that all?"]
        await card.get_by_role("button", name="No").click()
        assert await assistant.result("s") == "one, one, False"
        allowed = assistant.spawning("deploy", "web", host="web-1")
        card = tab.get_by_role("article").filter(has_text="web-1")
        await loaded_with(tab, card)
        await card.get_by_role("checkbox").press("Enter")
        await expect(card.get_by_role("alert")).to_contain_text("nothing was chosen")
        assert not allowed.done()
        await press(card.get_by_role("button", name="Allow", exact=True))
        await allowed
        assert await assistant.result("web") == "deployed to web-1\n"


async def test_without_scripts_what_a_new_page_asks_is_not_answered_by_the_click_before_it(workshop: Served) -> None:
    async with (
        agent(workshop) as assistant,
        browser() as chromium,
        page(chromium, WIDE, entry=workshop.entry, java_script_enabled=False) as tab,
    ):
        await assistant.spawn("survey", "s")
        held = await time_held(tab)  # no time passes for what a page does when it comes
        await tab.goto(workshop.dashboard)
        await expect(question(tab, "The first?").get_by_role("button", name="two")).to_have_css("opacity", "0.45")
        await held.send("Animation.setPlaybackRate", {"playbackRate": 1})
        await question(tab, "The first?").get_by_role("button", name="two").click()
        await expect(question(tab, "The first?")).to_have_count(0)
        other = question(tab, "The second?").get_by_role("button", name="two")
        await held.send("Animation.setPlaybackRate", {"playbackRate": 0})
        await loaded_with(tab, other)
        await expect(other).to_have_css("opacity", "0.45")
        await click(tab, await other.bounding_box(), 2)
        await expect(other).to_be_visible()
        assert await asked(workshop) == ["The second?"]
        await held.send("Animation.setPlaybackRate", {"playbackRate": 1})
        await expect(other).to_have_css("opacity", "1")
        await other.click()
        await expect(question(tab, "The second?")).to_have_count(0)
        no = question(tab, "Is that all?").get_by_role("button", name="No")
        await loaded_with(tab, no)
        await no.click()
        assert await assistant.result("s") == "two, two, False"


async def loaded_with(tab: Page, what: Locator) -> None:
    """The page, loaded again until that is on it, as a person does who has no scripts."""
    await tab.reload()
    while not await what.count():
        await tab.reload()


async def time_held(tab: Page) -> Any:
    """Hold the time of animations, in pages that come as well."""
    browser = await tab.context.new_cdp_session(tab)
    await browser.send("Animation.enable")
    await browser.send("Animation.setPlaybackRate", {"playbackRate": 0})
    return browser
