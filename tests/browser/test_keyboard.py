"""The dashboard by the keyboard alone: everything is reached, what has the focus is seen, and shortcuts do as said."""

from playwright.async_api import Page, expect
from tests.browser.browsing import WIDE, axe, browser, page, press
from tests.browser.scene import agent, busy
from tests.serve.serving import Served

MOST_TABS = 60
"""After so many something should have been reached."""
FOCUSED = """() => {
    const it = document.activeElement;
    return it.labels?.[0]?.innerText || it.getAttribute("aria-label") || it.innerText || it.value || "";
}"""


async def tab_to(tab: Page, what: str) -> None:
    """Press Tab until that has the focus."""
    seen = []
    for _ in range(MOST_TABS):
        await tab.keyboard.press("Tab")
        seen.append(str(await tab.evaluate(FOCUSED)).strip())
        if seen[-1].startswith(what):
            return
    raise AssertionError(f"Tab never comes to {what!r}; it came to {seen}")


async def test_a_question_is_answered_by_the_keyboard(workshop: Served) -> None:
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        await assistant.spawn("publish", "publish", version="1.0")
        await expect(tab.get_by_role("article")).to_have_count(1)
        await tab.keyboard.press("Tab")
        assert str(await tab.evaluate(FOCUSED)).startswith("Skip to the content")
        await tab.keyboard.press("Enter")
        await tab_to(tab, "production")
        production = tab.get_by_role("button", name="production")
        await expect(production).to_be_focused()
        await press(production, "Enter")
        assert await assistant.result("publish") == "1.0 is on production"


async def test_what_has_the_focus_is_seen_and_shortcuts_do_as_said(workshop: Served) -> None:
    """Whatever Tab comes to on a page has an outline, or something like it, that it had not before."""
    async with agent(workshop) as assistant, browser() as chromium, page(chromium, WIDE, entry=workshop.entry) as tab:
        await busy(assistant, workshop)
        await tab.keyboard.press("?")
        keys = tab.get_by_role("dialog", name="Keyboard")
        await expect(keys).to_be_visible()
        assert await axe(tab) == []
        await tab.keyboard.press("Escape")
        await expect(keys).to_be_hidden()
        await tab.goto(f"{workshop.dashboard}/handles")
        for _ in range(15):
            await tab.keyboard.press("Tab")
            outlined = await tab.evaluate(
                """() => {
                    const style = getComputedStyle(document.activeElement);
                    return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0)
                        || style.boxShadow !== "none";
                }"""
            )
            assert outlined, await tab.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        await tab.goto(f"{workshop.dashboard}/handles")
        await tab.keyboard.press("/")
        await expect(tab.get_by_label("Search")).to_be_focused()
        await tab.keyboard.type("jk?")
        await expect(tab.get_by_label("Search")).to_have_value("jk?")
        await tab.goto(f"{workshop.dashboard}/handles")
        await tab.keyboard.press("j")
        await tab.keyboard.press("j")
        await tab.keyboard.press("k")
        await tab.keyboard.press("Enter")
        await expect(tab).to_have_url(f"{workshop.dashboard}/handles/{await first_handle(workshop)}")


async def first_handle(server: Served) -> str:
    """The one that a list begins with."""
    async with server.client() as http:
        return str((await http.get("/api/handles")).json()["handles"][0]["uid"])
