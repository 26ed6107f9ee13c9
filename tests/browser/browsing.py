"""A real browser: Chromium, as the machine has it, driven by Playwright; what axe says about a page; screenshots.

Nothing is downloaded and nothing is asked for outside of the machine. Each test has a browser of its own, with a new
profile, and leaves nothing of it.
"""

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    TimeoutError,
    async_playwright,
    expect,
)

ROOT = Path(__file__).parents[2]
AXE = ROOT / "build" / "interop" / "node_modules" / "axe-core" / "axe.min.js"
SCREENSHOTS = ROOT / "build" / "screenshots"
PICTURES = ROOT / "docs" / "pictures"
PATIENCE_MS = 60_000.0
AGAIN_MS = 3_000.0
"""After which a button is pressed again."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

expect.set_options(timeout=PATIENCE_MS)


@dataclass(frozen=True)
class Look:
    """How a page is looked at."""

    width: int
    scheme: Literal["light", "dark"]

    @property
    def name(self) -> str:
        return f"{self.width}-{self.scheme}"

    @property
    def height(self) -> int:
        return 900 if self.width > 600 else 844


LOOKS = tuple(Look(width, scheme) for width in (1280, 390) for scheme in ("light", "dark"))
WIDE = Look(1280, "light")
NARROW_DARK = Look(390, "dark")


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser without anything in it."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("there is no chromium on the PATH; `make browser` installs it")
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield chromium
        finally:
            await chromium.close()


@asynccontextmanager
async def page(
    chromium: Browser, look: Look = WIDE, *, entry: str | None = None, **options: Any
) -> AsyncIterator[Page]:
    """A tab of a window of its own. What a page says on its console must not be an error; `entry` is opened first."""
    context = await chromium.new_context(
        viewport={"width": look.width, "height": look.height}, color_scheme=look.scheme, **options
    )
    context.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    try:
        tab = await context.new_page()
        _note_complaints(context, complaints)
        if entry is not None:
            await enter(tab, entry)
        yield tab
    finally:
        await context.close()
    assert not complaints, complaints


async def enter(tab: Page, entry: str) -> None:
    """Open the address that the server prints, until the dashboard is there."""
    await tab.goto(entry)
    await tab.wait_for_url(lambda url: "token=" not in url and "ticket=" not in url)


async def look_at(tab: Page, look: Look) -> None:
    """Change the width and the scheme of a loaded page, and wait until it is drawn so."""
    await tab.set_viewport_size({"width": look.width, "height": look.height})
    await tab.emulate_media(color_scheme=look.scheme)
    await drawn(tab)


async def drawn(tab: Page) -> None:
    """The page is on the screen as it is now."""
    await tab.evaluate("new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)))")


EXPECTED = re.compile("ERR_CONN|ERR_INCOMPLETE|ERR_EMPTY|responded with a status of 4")
"""What Chromium calls an error and is none: a server that is gone, and an answer that could not be taken."""


def _note_complaints(context: BrowserContext, complaints: list[str]) -> None:
    """Errors of scripts, and of the policy that says what a page may do."""

    def note(said: ConsoleMessage) -> None:
        if said.type == "error" and not EXPECTED.search(said.text):
            complaints.append(said.text)

    context.on("weberror", lambda error: complaints.append(str(error.error)))
    context.on("console", note)


async def axe(tab: Page) -> list[str]:
    """What axe finds, with all of its rules: of each a line with the rule and the element."""
    if not await tab.evaluate("'axe' in window"):
        await tab.evaluate(AXE.read_text())
    found: dict[str, Any] = await tab.evaluate(
        """async () => await axe.run(document, {
            runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
            resultTypes: ["violations"],
        })"""
    )
    return [
        f"{tab.url}: {rule['id']}: {rule['help']}: {node['html'][:160]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


async def press(button: Locator, key: str | None = None, until: Locator | None = None) -> None:
    """Press the button of a card, or a key on it, until the button is gone or `until` is shown, as a user does.

    A press is ignored if the card moved a moment before it, and on a busy machine a card can move at any time."""
    await expect(button).to_be_visible()
    while await button.count() and not (until and await until.is_visible()):
        with suppress(AssertionError, TimeoutError):  # the button may go before it is pressed
            await expect(button).to_be_enabled(timeout=AGAIN_MS)
            await (button.press(key, timeout=AGAIN_MS) if key else button.click(timeout=AGAIN_MS))
            await (expect(until).to_be_visible if until else expect(button).not_to_be_attached)(timeout=AGAIN_MS)
    if until:
        await expect(until).to_be_visible()


async def overflows(tab: Page) -> bool:
    """Whether the page is wider than the window, so that one has to scroll sideways."""
    return bool(await tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


SHOWN = {
    "requests": ("1280-light", "1280-dark"),
    "workflow": ("1280-light",),
    "terminal-driven": ("1280-light",),
    "conversation": ("1280-dark",),
    "day-home": ("390-dark",),
    "day-failed": ("1280-light",),
    "day-journal": ("1280-light",),
}
"""What the documentation has pictures of, and how it is looked at there."""


class Camera:
    """Keeps screenshots in `build/screenshots` and, if it is told to, those of the documentation."""

    def __init__(self, update_pictures: bool) -> None:
        self.update_pictures = update_pictures
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)

    async def take(self, tab: Page, name: str, look: Look) -> None:
        """The whole page; for the documentation, what is in the window."""
        await tab.screenshot(path=SCREENSHOTS / f"{name}-{look.name}.png", full_page=True, animations="disabled")
        if self.update_pictures and look.name in SHOWN.get(name, ()):
            PICTURES.mkdir(exist_ok=True)
            await tab.screenshot(path=PICTURES / f"{name}-{look.name}.png", animations="disabled")
