"""The pages that list, as they are read: their frame, their words, what they filter and how they go on."""

import re
from itertools import pairwise
from typing import Any

import pytest
from tests.durable.lives import approval
from tests.serve.fake_control import AGENT, HOSTILE, FakeControl, NoScreens, need, question
from tests.serve.pages import Page, browser, dashboard, fails, quick
from tests.turn.calls import STATEFUL, TALKING, abort, replies, spawn

import keephold
from keephold import Call, Key
from keephold.control import stored_output
from keephold.serve.dashboard import pages
from keephold.tools.toolbox import ServedTools

PAGES = ("/", "/handles", "/conversations", "/notifications", "/keys", "/permissions", "/stats", "/tools", "/sessions")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


async def read(control: FakeControl, path: str) -> Page:
    async with browser(control, NoScreens()) as http:
        answer = await http.get(path)
    assert answer.status_code == 200
    return Page(answer.text)


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("path", PAGES)
async def test_a_page_has_landmarks_headings_in_order_and_a_name_for_every_field(path: str, empty: bool) -> None:
    page = await read(FakeControl(empty=empty), path)
    assert len(page.all("main", id="main")) == len(page.all("h1")) == 1
    assert page.all("nav", aria_label="Pages") and page.all("a", class_="skip", href="#main")
    levels = [int(each.tag[1]) for each in page.elements if re.fullmatch("h[1-6]", each.tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    labelled = {label.attributes.get("for") for label in page.all("label")}
    wrapped = {id(inner) for label in page.all("label") for inner in label.inside}
    for each in page.elements:
        if each.tag in ("input", "select", "textarea") and each.attributes.get("type") != "hidden":
            assert each.attributes.get("id") in labelled or id(each) in wrapped, each
    ids = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("path", PAGES)
async def test_K1_a_page_has_no_script_or_style_of_its_own(path: str) -> None:
    page = await read(FakeControl(), path)
    for element in page.elements:
        assert "style" not in element.attributes and element.tag != "style"
        assert not [name for name in element.attributes if name.startswith("on")]
        assert element.tag != "script" or element.attributes["src"].startswith("/static/")


@pytest.mark.parametrize("path", PAGES)
async def test_K4_what_tools_wrote_is_text_and_nothing_else(path: str) -> None:
    control = FakeControl()
    asks = question(HOSTILE, {"Select": {"options": [HOSTILE, "b"]}}, pre_amble=HOSTILE, default=HOSTILE)
    control.open = [
        need("n-1", "question", HOSTILE, question=asks, problem=HOSTILE),
        need("n-2", "permission", HOSTILE, arguments={HOSTILE: HOSTILE}, handle_id=HOSTILE),
        need("n-3", "result", "t", result=HOSTILE + "</textarea></pre>", is_error=True, conversation=HOSTILE),
    ]
    for fact in control.listed:
        fact |= {"id": HOSTILE, "tool": HOSTILE, "conversation": HOSTILE, "last_line": HOSTILE, "message": HOSTILE}
    async with browser(control, NoScreens()) as http:
        html = (await http.get(path)).text
    assert "<script>alert" not in html
    assert not _CONTROLS.search(html)
    Page(html)  # nothing was opened or closed by what they wrote


async def test_arguments_show_what_cannot_be_seen() -> None:
    """Who allows a call must see all of it: an invisible character is written out."""
    control = FakeControl()
    control.open = [need("n-1", "permission", "rm", arguments={"path": "a\u202eb\x1b\u200b"})]
    page = await read(control, "/")
    assert r"a\u202eb\u001b\u200b" in page.texts("pre")[0]


async def test_what_needs_the_person_is_counted_wherever_they_look() -> None:
    for path in PAGES:
        page = await read(FakeControl(), path)
        assert page.title.startswith("(6) ")
        assert page.texts("span", class_="count") == ["6 need you"]
        assert "6 things need you" in page.texts("p", data_live="requests-count")
        assert (await read(FakeControl(empty=True), path)).texts("span", class_="count") == []


async def test_each_need_has_the_field_that_fits_it() -> None:
    page = await read(FakeControl(), "/")
    cards = {each.attributes["id"]: each for each in page.all("article")}
    assert list(cards) == [f"request-n-{number}" for number in range(1, 7)]

    def fields(id: str, **wanted: str) -> list[str]:
        inside = cards[f"request-{id}"].inside
        return [e.attributes.get("value", "") for e in inside if wanted.items() <= e.attributes.items()]

    assert fields("n-1", name="decision") == ["approve", "deny", "deny", "edit"]
    assert fields("n-1", name="remember") == ["yes"] and fields("n-3", name="remember") == []
    assert fields("n-2", name="value") == ["true", "false"]
    assert fields("n-3", name="value") == ["Keep both", "Overwrite", "Abort the merge"]
    assert fields("n-4", type="text") == ["The same as last time"]
    assert fields("n-5", type="password", autocomplete="off") == [""]
    assert fields("n-6", name="decision") == ["approve", "deny", "edit"]
    assert "the answer must be a string" in cards["request-n-4"].text


async def test_home_says_of_what_runs_that_it_waits_for_the_person() -> None:
    control = FakeControl()
    control.open = [need("n-1", "result", "build", result="x", is_error=False, handle=control.listed[0]["uid"])]
    control.listed[5]["held_up"] = [{"by": "permission", "name": "n-2", "behind": [], "count": 0}]
    (running,) = (await read(control, "/")).all("section", data_live="running")
    assert running.text.count("waits for you") == 2 and running.text.count("Waits for your permission") == 1


async def test_home_shows_what_runs_and_what_happened() -> None:
    async with dashboard([quick, fails]) as seen:
        page = await seen.page("/")
        assert "Nothing needs you." in page.texts("p", class_="calm")[0]
        await replies(seen.turn, spawn("quick", "q"), spawn("fails", "f"))
        page = await seen.page("/")
        (happened,) = page.all("section", data_live="happened")
        assert "the disk is full" in happened.text and "failed" in happened.text and "done" in happened.text


def ids_on(page: Page) -> list[str]:
    """The ids of the handles that a page lists."""
    return [link.text for link in page.all("a") if link.attributes["href"].startswith("/handles/")]


async def test_handles_are_filtered_searched_sorted_and_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dashboard([quick, fails]) as seen:
        await replies(seen.turn, spawn("quick", "alpha"), spawn("fails", "beta"), spawn("quick", "gamma"))

        async def ids(query: str) -> list[str]:
            return ids_on(await seen.page(f"/handles?{query}"))

        assert await ids("") == ["gamma", "beta", "alpha"]
        assert await ids("sort=oldest") == ["alpha", "beta", "gamma"]
        assert await ids("tool=fails") == ["beta"]
        assert await ids("q=amm") == ["gamma"]
        assert await ids("state=live") == []
        assert await ids("state=stopped&conversation=main") == ["gamma", "beta", "alpha"]
        assert await ids("conversation=other") == []
        assert await ids("state=nonsense&sort=nonsense&group=nonsense&kind=nonsense") == ["gamma", "beta", "alpha"]
        page = await seen.page("/handles?group=state")
        assert page.texts("th", scope="rowgroup") == ["done 2", "failed 1"]
        assert page.texts("p", data_key="of-this-page") == []
        monkeypatch.setattr(pages, "PAGE", 2)
        page = await seen.page("/handles?group=state")
        assert page.texts("p", data_key="of-this-page") == [
            "Grouped and counted on this page only; there are more pages."
        ]
        assert page.all("option", value="state", selected="")


@keephold.tool(actions=TALKING)
async def prints(call: Call, text: str) -> str:
    """Print a text, and end when it is told to."""
    call.emit(text)
    return str(await call.input())


async def test_handles_are_found_by_their_end_their_time_and_what_they_print(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dashboard([quick, fails, prints]) as seen:
        await replies(seen.turn, spawn("quick", "a"), spawn("fails", "b"), spawn("prints", "c", text="The Needle\n"))
        await replies(seen.turn, spawn("prints", "d", text='"quoted"'), spawn("prints", "e", text="straw " * 20_000))
        await replies(seen.turn, abort("prints", "d"))

        async def ids(query: str) -> list[str]:
            return ids_on(await seen.page(f"/handles?{query}"))

        assert await ids("state=done") == ["a"]
        assert await ids("state=failed") == ["b"]
        assert await ids("state=aborted&time=today&tool=prints") == ["d"]
        assert await ids("time=hour") == await ids("since=2020-01-01T00:00") == ["e", "d", "c", "b", "a"]
        assert await ids("until=2020-01-01T00:00") == await ids("time=yesterday") == []
        assert await ids("since=nonsense&time=nonsense&state=failed") == ["b"]
        page = await seen.page("/handles")
        assert page.texts("p", class_="totals") == ["5 handles 2 running 1 done 1 failed 1 aborted"]
        assert "/handles?state=failed" in {
            link.attributes["href"] for link in page.all("a", class_="total total-failed")
        }
        assert await ids("text=needle") == ["c"], "in its output, and in arguments"
        assert await ids("text=%22QUOTED%22") == ["d"], "as it is written, not as JSON"
        assert await ids("text=w+straw+s") == ["e"]
        assert await ids("text=straw&state=done") == await ids("text=nowhere") == []
        assert (await seen.page("/handles?text=needle")).texts("p", class_="totals") == ["1 handle found"]
        monkeypatch.setattr(stored_output, "EXAMINED", 2)
        monkeypatch.setattr(stored_output, "_PAGE", 2)
        page = await seen.page("/handles?text=needle")
        assert ids_on(page) == [] and "Not found so far" in page.texts("p", class_="empty")[0]
        (further,) = [link.attributes["href"] for link in page.all("a", rel="next")]
        assert ids_on(await seen.page(further)) == ["c"]


async def test_a_long_list_goes_on_from_where_it_was() -> None:
    async with dashboard([quick]) as seen:
        for batch in range(3):
            await replies(seen.turn, *(spawn("quick", f"h{batch}-{each}") for each in range(40)))
        found: list[str] = []
        path: str | None = "/handles?tool=quick"
        while path is not None:
            page = await seen.page(path)
            found += ids_on(page)
            links = [link.attributes["href"] for link in page.all("a", rel="next")]
            path = links[0] if links else None
            assert path is None or "tool=quick" in path
        assert len(found) == len(set(found)) == 120


async def test_conversations_of_sub_agents_stand_below_their_callers() -> None:
    page = await read(FakeControl(), "/conversations")
    rows = [row for row in page.all("tr") if "data-row" in row.attributes]
    assert [row.attributes["data-key"].partition("/")[0] for row in rows] == ["main"] * 3 + ["billing", "scratch"]
    depths = [re.search(r"depth-(\d)", row.inside[0].attributes["class"]) for row in rows]
    assert [depth and depth[1] for depth in depths] == ["0", "1", "2", "0", "0"]
    assert page.texts("a", title=AGENT) == ["reviewer"]


async def test_D3_keys_are_a_page_at_a_time_and_what_is_revoked_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_KEYS", 3)
    async with dashboard([approval([], actions=STATEFUL)]) as seen:
        await seen.turn.run([spawn("approve", f"a{number}") for number in range(5)])
        first = await seen.page("/keys?conversation=main")
        rows = [row for row in first.all("tr") if "data-row" in row.attributes]
        assert len(rows) == 3 and "Revoke all 5 open keys" in " ".join(first.texts("p"))
        (following,) = [link.attributes["href"] for link in first.all("a", rel="next")]
        last = await seen.page(following)
        rows += [row for row in last.all("tr") if "data-row" in row.attributes]
        assert len({row.attributes["data-key"] for row in rows}) == 5 and not last.all("a", rel="next")
        assert "/keys?conversation=main" in [link.attributes["href"] for link in last.all("a", class_="button")]


async def test_D3_a_key_is_named_by_its_id_and_the_key_is_on_no_page() -> None:
    keys: list[Key] = []
    async with dashboard([approval(keys, actions=STATEFUL)]) as seen:
        await replies(seen.turn, spawn("approve", "a"))
        assert keys[0].key_id in (await seen.page("/keys")).texts("span", class_="mono")
        for path in (*PAGES, "/keys?conversation=main", "/keys?conversation=other"):
            assert str(keys[0]) not in (await seen.http.get(path)).text
        assert not (await seen.page("/keys?conversation=other")).all("table")


async def test_notifications_tell_what_became_of_them() -> None:
    page = await read(FakeControl(), "/notifications?conversation=main")
    history = page.all("section", data_live="history")[0].text
    assert "with a tool's response" in history and "a reply had shown it" in history
    async with dashboard([quick]) as seen:
        await seen.runtime.notify("test.news", "warning", "the queue is long", conversation="main")
        page = await seen.page("/notifications")
        assert "the queue is long" in page.all("section", data_live="queued")[0].text
        assert "the queue is long" not in (await seen.page("/notifications?conversation=other")).all("main")[0].text


async def test_tools_are_those_of_the_runtime() -> None:
    async with dashboard([quick, fails]) as seen:
        page = await seen.page("/tools")
        assert page.texts("h3")[:3] == ["fails", "quick", "ask_user"], "one's own first"
        built_in = {tool.name for tool in ServedTools(seen.runtime.toolbox, lambda: False)}
        assert built_in == set(page.texts("h3")) and "execute_agent_async" not in built_in
        assert "Be done at once." in page.texts("p", class_="tool-text")
    page = await read(FakeControl(), "/tools")
    told = {"target string, required", 'profile one of "debug", "release"', "features array of string", "any anything"}
    assert told <= set(page.texts("dt")) and "id string, required" not in page.texts("dt")


async def test_styles_and_scripts_are_kept_by_browsers_and_asked_for_again() -> None:
    async with browser(FakeControl(), NoScreens()) as http:
        page = Page((await http.get("/")).text)
        named = [e.attributes.get("src") or e.attributes["href"] for e in page.elements if e.tag in ("script", "link")]
        assert len(named) > 4
        for path in (*named, "/static/palette.css"):
            answer = await http.get(path)
            assert answer.status_code == 200 and answer.headers["cache-control"] == "no-cache"
            tag = answer.headers["etag"]
            for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):  # a proxy that compresses makes tags weak
                again = await http.get(path, headers={"if-none-match": known})
                assert again.status_code == 304 and again.headers["cache-control"] == "no-cache"
            assert (await http.get(path, headers={"if-none-match": '"other"'})).status_code == 200
        for path in ("/static/../pages.py", "/static/%2e%2e/pages.py", "/static/none.css", "/static/"):
            assert (await http.get(path)).status_code == 404


async def test_pages_are_kept_by_nobody() -> None:
    async with browser(FakeControl(), NoScreens()) as http:
        for path in PAGES:
            assert (await http.get(path)).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("before", ["x", "-1", "9" * 30, "0"])
async def test_a_wrong_cursor_is_none(before: str) -> None:
    control: Any = FakeControl()
    await read(control, f"/notifications?before={before}")
    assert control.asked[-1]["before"] in (None, 0)
