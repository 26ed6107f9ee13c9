"""A person at the dashboard while an agent works: what they see on every page, at every width and in both schemes."""

from contextlib import AsyncExitStack

import pytest
from playwright.async_api import Locator, Page, expect
from tests.browser.browsing import LOOKS, NARROW_DARK, WIDE, Camera, axe, browser, look_at, overflows, page, press
from tests.browser.scene import agent, busy
from tests.serve.serving import Served
from tests.soak import SOAK


def places(uids: dict[str, str]) -> dict[str, str]:
    """All pages, by the name of their picture."""
    return {
        "home": "/",
        "handles": "/handles",
        "handles-grouped": "/handles?group=state",
        "conversations": "/conversations",
        "notifications": "/notifications",
        "keys": "/keys",
        "stats": "/stats",
        "tools": "/tools",
        "sessions": "/sessions",
        "build": f"/handles/{uids['app']}",
        "terminal": f"/handles/{uids['shell']}",
        "release": f"/handles/{uids['v1']}",
        "question": f"/handles/{uids['publish']}",
        "workflow": f"/handles/{uids['checks']}",
        "stopped": f"/handles/{uids['said']}",
        "conversation": "/conversations/mcp",
    }


@pytest.mark.timeout(480)  # for two busy cores: sixteen pages, each looked at twice by axe
async def test_every_page_is_for_everyone(workshop: Served, camera: Camera) -> None:
    """axe finds nothing, nothing is cut off at the side, and there is a picture of it.

    Light where it is wide, dark where it is narrow; a soak looks at all four, and so does `--update-pictures`. Each
    page is loaded once, because only its style sheets and the folded filters depend on the look."""
    problems: list[str] = []
    looks = LOOKS if SOAK or camera.update_pictures else (WIDE, NARROW_DARK)
    async with agent(workshop) as assistant, browser() as chromium:
        uids = await busy(assistant, workshop)
        asked = assistant.spawning("deploy", "deploy", host="web-1")
        async with page(chromium, entry=workshop.entry) as tab:
            await expect(tab.get_by_role("heading", name="May deploy start?")).to_be_visible()
            for name, place in places(uids).items():
                await tab.goto(workshop.dashboard + place)
                await expect(tab.get_by_role("heading", level=1)).to_have_count(1)
                await settled(tab, name)
                for look in looks:
                    await look_at(tab, look)
                    problems += [f"{look.name}: {problem}" for problem in await axe(tab)]
                    if await overflows(tab):
                        problems.append(f"{tab.url} at {look.name}: is wider than its window")
                    await camera.take(tab, name, look)
        asked.cancel()
    assert not problems, "\n".join(problems)


async def settled(tab: Page, name: str) -> None:
    """What comes by itself a moment later is there."""
    if name == "terminal":
        await expect(tab.get_by_text("ready", exact=True).first).to_be_visible()
    if name == "build":
        await expect(tab.get_by_text("compiling app: part").first).to_be_visible()


async def test_people_answer_what_an_agent_asks(workshop: Served, camera: Camera) -> None:
    """Two builds and a terminal go on meanwhile. Four look on, each answers something, and the page of everyone, at
    every width, shows all of it without being loaded again."""
    async with agent(workshop) as assistant, browser() as chromium, AsyncExitStack() as stack:
        tabs = {look: await stack.enter_async_context(page(chromium, look, entry=workshop.entry)) for look in LOOKS}
        wide, wide_dark, phone, phone_dark = tabs.values()
        for tab in tabs.values():
            await expect(tab.get_by_text("Nothing needs you.")).to_be_visible()
        uids = await busy(assistant, workshop)
        asked = assistant.spawning("deploy", "deploy", host="web-1")
        for look, tab in tabs.items():
            await expect(needs(tab).get_by_role("article")).to_have_count(3)
            await expect(tab).to_have_title("(3) Home · keephold")
            await camera.take(tab, "requests", look)

        await press(card(phone_dark, "Where should 1.0 go?").get_by_role("button", name="staging"))
        for tab in tabs.values():
            await expect(card(tab, "Where should 1.0 go?")).to_have_count(0)
        assert await assistant.result("publish") == "1.0 is on staging"

        name = card(wide, "What shall it be called?")
        await name.get_by_role("textbox").fill("Otter <i>&")
        await press(name.get_by_role("button", name="Answer"))
        for tab in tabs.values():
            await expect(card(tab, "What shall it be called?")).to_have_count(0)
        assert await assistant.result("name") == "called Otter <i>&"

        await needs(phone).get_by_role("region", name="Arguments of deploy").scroll_into_view_if_needed()
        await press(needs(phone).get_by_role("button", name="Allow"))
        for tab in tabs.values():
            await expect(tab.get_by_text("Nothing needs you.")).to_be_visible()
        await asked
        assert await assistant.result("deploy") == "deployed to web-1\n"

        again = assistant.spawning("deploy", "again", host="web-2")
        await press(needs(wide_dark).get_by_role("button", name="Allow"))
        await again
        workshop.open("app.built")
        for tab in tabs.values():
            await shows_the_rest(tab)
        assert len(uids) == 8


def needs(tab: Page) -> Locator:
    return tab.locator("section", has=tab.get_by_role("heading", name="Needs you"))


def card(tab: Page, text: str) -> Locator:
    """Of a question."""
    return needs(tab).get_by_role("article").filter(has_text=text)


async def shows_the_rest(tab: Page) -> None:
    """Nothing asks any more, one build has ended and the other goes on."""
    await expect(tab).to_have_title("Home · keephold")
    happened = tab.locator("section", has=tab.get_by_role("heading", name="Just happened"))
    await expect(happened.get_by_role("link", name="app", exact=True)).to_be_visible()
    running = tab.locator("section", has=tab.get_by_role("heading", name="Running"))
    await expect(running.get_by_role("link", name="docs", exact=True)).to_be_visible()
    await expect(running.get_by_text("compiling docs: part").first).to_be_visible()


async def test_a_bad_answer_can_be_mended_and_a_card_that_was_answered_is_gone_with_all_that_was_typed_into_it(
    workshop: Served,
) -> None:
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        asked = assistant.spawning("deploy", "deploy", host="web-1")
        card = tab.get_by_role("article")
        await card.get_by_text("Edit the arguments").click()
        await card.get_by_role("textbox", name="Arguments, as JSON").fill("{")
        await press(card.get_by_role("button", name="Allow with these"), until=card.get_by_role("alert"))
        await card.get_by_role("textbox", name="Arguments, as JSON").fill('{"host": "web-2"}')
        await press(card.get_by_role("button", name="Allow with these"))
        await asked
        assert await assistant.result("deploy") == "deployed to web-2\n"
        denied = assistant.spawning("deploy", "again", host="web-3")
        await card.get_by_text("Deny with a reason").click()
        await card.get_by_role("textbox", name="Why not").fill("not on a Friday")
        await press(card.get_by_role("button", name="Deny").last)
        assert "not on a Friday" in str(await denied)

        asked = assistant.spawning("deploy", "last", host="web-1")
        await card.get_by_text("Deny with a reason").click()
        await card.get_by_role("textbox", name="Why not").fill("hm")
        await card.get_by_text("Edit the arguments").click()
        await card.get_by_role("textbox", name="Arguments, as JSON").fill("{")
        await press(card.get_by_role("button", name="Allow with these"), until=card.get_by_role("alert"))
        await assistant.spawn("shout", "noise", text="x")  # the page is brought up to date
        await expect(tab.get_by_role("link", name="noise", exact=True).first).to_be_visible()
        await expect(card.get_by_text("Edit the arguments")).to_have_count(1)
        await press(card.get_by_role("button", name="Allow", exact=True))
        await asked
        await expect(card).to_have_count(0)
        await expect(tab.get_by_text("Nothing needs you.")).to_be_visible()


async def test_what_was_typed_is_kept_when_something_happens_and_when_its_card_goes_elsewhere(workshop: Served) -> None:
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        await assistant.spawn("name_release", "name")
        field = tab.get_by_role("textbox")
        await field.fill("half a na")
        await assistant.spawn("shout", "noise", text="x")
        await expect(tab.get_by_role("link", name="noise", exact=True).first).to_be_visible()
        await expect(field).to_have_value("half a na")
        await field.press("End")
        await tab.keyboard.type("me")
        await expect(tab.get_by_role("button", name="Answer")).to_be_enabled()
        await press(field, "Enter")
        assert await assistant.result("name") == "called half a name"

        await assistant.spawn("name_release", "other")
        await field.fill("half a na")
        await assistant.call("name_release", action="abort", id="other")
        await expect(tab.get_by_text("Nothing needs you.")).to_be_visible()
        await expect(field).to_have_value("half a na")
        await tab.get_by_role("button", name="Remove").click()
        await expect(tab.get_by_role("article")).to_have_count(0)


async def test_a_handle_is_aborted_after_a_second_thought(workshop: Served) -> None:
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        uid = await assistant.spawn("build", "app", target="app")
        await tab.goto(f"{workshop.dashboard}/handles/{uid}")
        await tab.get_by_text("Abort…").click()
        await tab.get_by_role("button", name="Abort it").click()
        await expect(tab.get_by_text("Aborted", exact=False).first).to_be_visible()
        waited = await assistant.call("await", all=["app"])
        assert waited["completed"][0]["state"] == "stopped"
