"""The page of numbers, as it is read by whoever runs the server."""

import asyncio
import time
from pathlib import Path
from typing import Any

from tests.serve.fake_control import FakeControl, NoScreens, fact
from tests.serve.pages import Page, browser, dashboard, fails, quick
from tests.turn.calls import STATEFUL, abort, replies, spawn, wait_all

import keephold
from keephold.serve.dashboard.pages import ToolToday, today


@keephold.tool(actions=STATEFUL)
async def endless() -> str:
    await asyncio.Event().wait()
    return "never"


def figures(page: Page) -> dict[str, str]:
    """The numbers of a page, with what is said of them, by their names."""
    names, told = (page.texts(tag) for tag in ("dt", "dd"))
    return dict(zip(names, told, strict=True))


async def read(control: Any) -> Page:
    async with browser(control, NoScreens()) as http:
        return Page((await http.get("/stats")).text)


async def test_numbers_are_those_of_the_runtime() -> None:
    async with dashboard([quick, fails]) as seen:
        page = await seen.page("/stats")
        assert page.texts("p", class_="statement") == ["Tools have produced nothing yet."]
        assert figures(page)["Stopped today"] == "0" and figures(page)["A wait takes"] == "–"
        assert figures(page)["Waiting for you"] == "0 nothing needs you"
        await replies(seen.turn, spawn("quick", "a"), spawn("quick", "b"), spawn("fails", "c"), wait_all("a", "b", "c"))
        page = await seen.page("/stats")
        assert "Tools produced" in page.texts("p", class_="statement")[0]
        assert figures(page)["Stopped today"] == "3 2 done, 1 failed"
        assert figures(page)["Waits that have ended"].startswith("1 ")
        rows = [" ".join(row.text.split()) for row in page.all("tr") if "data-key" in row.attributes]
        assert rows == ["quick 2", "fails 1", "fails 1 of 1"]


async def test_S3_what_was_aborted_has_not_failed() -> None:
    async with dashboard([fails, endless]) as seen:
        await replies(seen.turn, spawn("endless", "a"), spawn("endless", "b"), spawn("fails", "c"), wait_all("c"))
        await replies(seen.turn, abort("endless", "a"), abort("endless", "b"))
        page = await seen.page("/stats")
        assert figures(page)["Stopped today"] == "3 2 aborted, 1 failed"
        rows = [" ".join(row.text.split()) for row in page.all("tr") if "data-key" in row.attributes]
        assert rows == ["endless 2", "fails 1", "fails 1 of 1"]


async def test_numbers_are_said_in_words() -> None:
    page = await read(FakeControl())
    assert page.texts("p", class_="statement") == ["Tools produced 48 MB; models were shown 1.9 MB: 4.0 % of it."]
    (shown,) = [e for e in page.all("rect", class_="bar-part") if e.attributes["width"] == "40.0"]
    assert shown
    told = figures(page)
    assert told["Live now"] == "20 6 running, 12 parked, 1 asking, 1 not begun"
    assert told["Waiting for you"] == "6 to be answered, allowed or let through"
    assert told["A wait takes"] == "4.20 s typically; 99 of 100 took at most 5m 40s"
    assert told["A waiter resumes after"] == "0.8 ms typically; 99 of 100 within 7.4 ms"
    (head,) = page.texts("p", data_live="server")
    assert head.startswith("Running for 23h 53m, since ") and "The store takes 88 MB. Stored" in head
    assert head.endswith("Stored output and results take 3.2 GB of at most 11 GB.")


async def test_what_is_for_engineers_comes_last_and_leads_to_the_metrics() -> None:
    page = await read(FakeControl())
    (main,) = page.all("main")
    titles = [each.text for each in main.inside if each.tag == "h2"]
    assert titles[0] == "Handles" and titles[-1] == "For engineers"
    (part,) = page.all("section", data_live="engineers")
    assert {"Commits", "Events", "Event streams"} <= {each.text for each in part.inside if each.tag == "dt"}
    assert [each.attributes["href"] for each in part.inside if each.tag == "a"] == ["/metrics"]


NOON = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))


class Stopped(FakeControl):
    """A control with that many handles that have stopped, a second apart."""

    def __init__(self, count: int, now: float) -> None:
        super().__init__(empty=True)
        self.listed = [
            fact(f"h{n}", "stopped", uid=f"{n}", stopped=now - n, tool="odd" if n % 2 else "even", ok=bool(n % 4))
            for n in range(count)
        ]


async def test_what_stopped_before_midnight_is_not_of_today() -> None:
    store: Any = Stopped(1000, NOON - 12 * 3600 + 299)
    found = await today(store, NOON)
    assert found.stopped == 300
    assert found.outcomes == [("done", 225), ("failed", 75)]
    assert found.used == [ToolToday("even", 150, 75), ToolToday("odd", 150, 0)]
    assert found.failing == [ToolToday("even", 150, 75)]


async def test_all_of_very_many_are_counted() -> None:
    midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
    control = Stopped(5000, midnight + 4999)
    assert figures(await read(control))["Stopped today"] == "5,000 3,750 done, 1,250 failed"
    assert control.asked == [], "no list is read for it"


async def test_it_says_where_everything_is_kept(postgres: str, tmp_path: Path) -> None:
    stores = {
        "memory:": "Everything is kept in memory.",
        postgres: "Everything is kept in a database.",
        f"sqlite:///{tmp_path}/k.db": "The store takes",
    }
    for store, told in stores.items():
        async with dashboard(store=store) as seen:
            (line,) = (await seen.page("/stats")).texts("p", data_live="server")
            assert told in line and sum(each in line for each in stores.values()) == 1
