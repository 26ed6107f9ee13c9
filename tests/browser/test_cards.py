"""What needs a person, over a restart of the server and when it is refused: one card, and what is in it stays."""

import pytest
from playwright.async_api import expect
from tests.browser.browsing import LOOKS, WIDE, Camera, Look, axe, browser, overflows, page, press
from tests.browser.scene import agent
from tests.serve.serving import Served


async def test_R1_a_question_that_is_asked_again_is_the_same_card(workshop: Served, camera: Camera) -> None:
    async with browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        async with agent(workshop) as assistant:
            await assistant.spawn("name_release", "name")
            await tab.get_by_role("textbox").fill("Otter")
            workshop.kill()
        await press(tab.get_by_role("button", name="Answer"), until=tab.get_by_text("It could not be sent"))
        workshop.restart()
        await expect(tab.get_by_text("Connection lost, trying again")).to_be_hidden()
        await expect(tab.get_by_role("article")).to_have_count(1)
        await expect(tab.get_by_role("textbox")).to_have_value("Otter")
        await expect(tab.get_by_role("button", name="Remove")).to_have_count(0)
        await press(tab.get_by_role("button", name="Answer"))
        await expect(tab.get_by_text("name has its answer.")).to_be_visible()
        await camera.take(tab, "answered", WIDE)
        async with agent(workshop) as assistant:
            assert await assistant.result("name") == "called Otter"


async def test_what_was_wrong_is_said_once_in_the_card_on_whichever_page(workshop: Served) -> None:
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        assistant.spawning("deploy", "deploy", host="web-1")
        await expect(tab.get_by_role("article")).to_have_count(1)
        for place in ("/", f"/handles/{await assistant.uid('deploy')}"):
            await tab.goto(workshop.dashboard + place)
            card = tab.get_by_role("article")
            top = await card.evaluate("card => card.getBoundingClientRect().top")
            await card.get_by_text("Edit the arguments").click()
            await card.get_by_role("textbox", name="Arguments, as JSON").fill("{")
            await press(card.get_by_role("button", name="Allow with these"), until=card.get_by_role("alert"))
            await expect(card.get_by_role("alert")).to_contain_text("not JSON")
            await expect(tab.get_by_text("not JSON")).to_have_count(1)
            await expect(card.get_by_role("textbox", name="Arguments, as JSON")).to_have_value("{")
            assert await card.evaluate("card => card.getBoundingClientRect().top") == top
        assert await axe(tab) == []


async def test_r_leads_to_the_first_card_and_a_second_thought_can_be_taken_back(workshop: Served) -> None:
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        uid = await assistant.spawn("publish", "publish", version="1.0")
        await expect(tab.get_by_role("article")).to_have_count(1)
        await tab.keyboard.press("r")
        await expect(tab.get_by_role("heading", name="publish asks")).to_be_focused()
        await tab.goto(f"{workshop.dashboard}/handles/{uid}")
        for leave in ("Cancel", "Escape"):
            await tab.get_by_text("Abort…").click()
            await expect(tab.get_by_role("button", name="Abort it")).to_be_visible()
            if leave == "Cancel":
                await tab.get_by_role("button", name="Cancel").click()
            else:
                await tab.get_by_role("button", name="Abort it").press("Escape")
            await expect(tab.get_by_role("button", name="Abort it")).to_be_hidden()


@pytest.mark.parametrize("look", (WIDE, LOOKS[-1]), ids=lambda look: look.name)
async def test_nothing_there_is_a_page_and_an_empty_home_says_how_to_begin(
    workshop: Served, camera: Camera, look: Look
) -> None:
    async with browser() as chromium, page(chromium, look, entry=workshop.entry) as tab:
        await expect(tab.get_by_role("heading", name="Get started")).to_be_visible()
        await expect(tab.get_by_text(f'"url": "{workshop.mcp}"')).to_be_visible()
        assert await axe(tab) == [] and not await overflows(tab)
        await camera.take(tab, "empty", look)
        for place, title in (("/nosuch", "No such page"), ("/handles/nosuch", "No such handle")):
            answer = await tab.goto(workshop.dashboard + place)
            assert answer is not None and answer.status == 404
            await expect(tab.get_by_role("heading", level=1, name=title)).to_be_visible()
            await expect(tab.get_by_role("navigation", name="Pages")).to_be_visible()
            assert await axe(tab) == []
            await camera.take(tab, title.lower().replace(" ", "-"), look)
