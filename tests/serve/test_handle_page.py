"""The page of a handle, as it is read: how it stands, what it asks, printed, did and came to."""

import asyncio
import re
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.serve.pages import Page, dashboard
from tests.turn.calls import STATEFUL, TALKING, reply, spawn

import keephold
from keephold import Call, Question, ToolError
from keephold.cli import show
from keephold.serve.dashboard import handle
from keephold.serve.dashboard.painting import nearest, palette_css, rgb, screen_html
from keephold.tools.terminal.emulator import Style, StyledRun, rows_of

HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m \x1b]0;t\x07 \u202egnp\u202c \x9b2J \0 </pre></main>"
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@keephold.tool(actions=STATEFUL)
async def prints(call: Call, text: str) -> str:
    call.emit(text)
    return ""


@keephold.tool(actions=TALKING)
async def asks(call: Call) -> str:
    sure = await call.ask(Question(id="sure", text="Deploy <b>now</b>?", answer_type="Boolean"))
    return f"deployed: {sure}"


@keephold.tool(actions=STATEFUL, on_crash="replay")
async def works(call: Call) -> str:
    fx = call.durable()

    async def create(given: Any) -> Any:
        return {"made": given["env"]}

    async def broken(given: Any) -> Any:
        raise ToolError("the quota is used up")

    await fx.run_json("create", {"env": "prod"}, create)
    await fx.run_json("charge", {"euros": 5}, broken)
    return ""


def uid_of(seen: Any, id: str) -> str:
    handles = seen.runtime.registry.live("main")
    return str(next(handle.uid for handle in handles if handle.id == id))


async def started(seen: Any, tool: str, id: str, **arguments: Any) -> str:
    """Spawn it; its uid."""
    await reply(seen.turn, spawn(tool, id, **arguments))
    found = await seen.control.store_view.handles(search=id)
    return str(found["handles"][0]["uid"])


async def ended(seen: Any, id: str) -> None:
    await seen.runtime.wait(all=[id], conversation="main", timeout=PATIENCE)


def said(page: Page, title: str) -> str:
    """The text of the section of a title."""
    (heading,) = [each for each in page.all("h2") if " ".join(each.text.split()) == title]
    (section,) = page.all("section", aria_labelledby=heading.attributes["id"])
    return " ".join(section.text.split())


async def test_K4_what_a_tool_printed_is_text_however_it_tries() -> None:
    async with dashboard([prints]) as seen:
        uid = await started(seen, "prints", "evil", text=HOSTILE + "\n" + "x" * 1_000_000 + "\n")
        await ended(seen, "evil")
        for query in ("", "?from=0", "?q=script", "?q=%3Cscript", "?q=%1b", "?lines=100", "?from=99999999999"):
            answer = await seen.http.get(f"/handles/{uid}{query}")
            assert answer.status_code == 200
            page = Page(answer.text)
            assert not _CONTROLS.search(answer.text.replace("\r", ""))
            assert len(answer.content) < 400_000
            assert [each.attributes.get("src") for each in page.all("script") if "alert" in each.text] == []
            assert len(page.all("main")) == 1
            inline = [
                each
                for each in page.elements
                if "style" in each.attributes or any(k.startswith("on") for k in each.attributes)
            ]
            assert inline == []


async def test_output_is_read_a_page_at_a_time_from_the_end() -> None:
    async with dashboard([prints]) as seen:
        uid = await started(seen, "prints", "p", text="".join(f"line {n:06}\n" for n in range(20_000)))
        await ended(seen, "p")
        page = await seen.page(f"/handles/{uid}")
        assert "line 019999" in said(page, "Output") and "line 000000" not in said(page, "Output")
        (earlier,) = [each.attributes["href"] for each in page.all("a") if each.text == "Earlier"]
        page = await seen.page(earlier)
        assert "line 019999" not in said(page, "Output")
        hrefs = [each.attributes["href"] for each in page.all("a") if each.text == "Later"]
        assert "line 019999" in said(await seen.page(hrefs[0]), "Output")
        found = await seen.page(f"/handles/{uid}?q=012345")
        (link,) = [each.attributes["href"] for each in found.all("a", aria_label="From byte 148,145 on")]
        assert found.texts("mark") == ["012345"]
        assert (await seen.page(link)).texts("pre", aria_label="Output of p")[0].startswith("line 012345 line 012346")


async def test_what_it_asks_is_answered_in_place() -> None:
    async with dashboard([asks]) as seen:
        uid = await started(seen, "asks", "a")
        need = await seen.need()
        page = await seen.page(f"/handles/{uid}")
        assert "Deploy <b>now</b>?" in page.texts("p", class_="question")
        (form,) = [each for each in page.all("form", action=f"/do/requests/{need['id']}") if "Yes" in each.text]
        assert [each.attributes["value"] for each in form.inside if each.attributes.get("name") == "next"] == [
            f"/handles/{uid}"
        ]
        await seen.answer(need, decision="answer", value="true")
        await ended(seen, "a")
        page = await seen.page(f"/handles/{uid}")
        assert "deployed: True" in said(page, "How it ended")
        happened = said(page, "Events")
        assert happened.index("Asked sure") < happened.index("Answered, resumed") < happened.index("Stopped")


async def test_the_journal_shows_what_went_in_and_what_came_out_and_marks_errors() -> None:
    async with dashboard([works]) as seen:
        uid = await started(seen, "works", "w")
        await ended(seen, "w")
        page = await seen.page(f"/handles/{uid}")
        bad, good = (each for each in page.all("details") if each.attributes.get("class", "").startswith("step"))
        assert "create" in good.text and '"made": "prod"' in good.text
        assert bad.attributes["class"] == "step entry-failed" and "the quota is used up" in bad.text
        (summary,) = [each for each in bad.inside if each.tag == "summary"]
        assert re.search(r"\+\d.* \d\d:\d\d:\d\d", summary.text), "after the entry before, and when"
        assert "the quota is used up" in said(page, "How it ended")


async def test_a_long_journal_is_read_in_blocks_that_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry is in one block, whichever way it is read: by the script, or by links without scripts."""
    monkeypatch.setattr(handle, "BLOCK", 3)

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def steps(call: Call) -> str:
        effects = call.durable()
        for number in range(8):
            await effects.run_json(f"s{number}", {}, _nothing)
        return "done"

    async with dashboard([steps]) as seen:
        uid = await started(seen, "steps", "s")
        await ended(seen, "s")
        page = await seen.page(f"/handles/{uid}")
        found = page.texts("span", class_="mono step-name")
        assert found == ["s7", "s6", "s5", "s4", "s3"], "the newest, and a whole block"
        blocks = [each.attributes["data-src"] for each in page.all("step-block")]
        for address in blocks:
            found += (await seen.page(address)).texts("span", class_="mono step-name")
        assert found == [f"s{number}" for number in reversed(range(8))] and len(blocks) == 1
        (earlier,) = [link.attributes["href"] for link in page.all("a", rel="next")]
        page = await seen.page(earlier)
        assert page.texts("span", class_="mono step-name") == ["s2", "s1", "s0"]


async def _nothing(given: object) -> None:
    return None


async def test_E8_the_events_of_a_process_are_on_the_page_and_in_show() -> None:
    @keephold.tool(actions=STATEFUL)
    async def build(call: Call) -> str:
        await call.process_events().emit("part.<done>", {"number": 7})
        return "built"

    async with dashboard([build]) as seen:
        uid = await started(seen, "build", "b")
        await ended(seen, "b")
        page = await seen.page(f"/handles/{uid}")
        assert "part.<done>" in said(page, "Process events") and '"number": 7' in said(page, "Process events")
        found = await seen.control.runtime_view.handle(uid)
        (event,) = found["process_events"]
        assert (event["sequence"], event["type"], event["payload"]) == (1, "part.<done>", {"number": 7})
        assert 'part.<done>  {"number":7}' in "\n".join(show._lines(found, 0.0))


async def test_R5_the_reasons_of_retries_are_in_the_journal_of_the_page_and_of_show() -> None:
    policy = keephold.policies.RetryPolicy(policy="safe", base_delay_ms=1)

    @keephold.tool(actions=("spawn", "fetch", "abort"), retry=policy)
    async def flaky(call: keephold.Call) -> str:
        if call.attempt < 3:
            raise keephold.ToolError(f"busy <{call.attempt}>", transient=True)
        return "done"

    async with dashboard([flaky]) as seen:
        uid = await started(seen, "flaky", "f")
        await ended(seen, "f")
        page = await seen.page(f"/handles/{uid}")
        entries = page.all("details", class_="step entry-failed")
        assert ["busy <2>" in entries[0].text, "busy <1>" in entries[1].text, len(entries)] == [True, True, 2]
        shown = "\n".join(show._lines(await seen.control.runtime_view.handle(uid), 0.0))
        assert "attempt  1  error  busy <1>" in shown and "attempt  2  error  busy <2>" in shown


async def test_a_workflow_is_drawn_with_its_current_step() -> None:
    async with dashboard() as seen:
        steps = [
            {"id": "a<b>", "type": "transform", "config": {"expression": "1"}},
            {"id": "slow", "type": "delay", "config": {"ms": 600_000}},
            {"id": "after", "type": "transform", "config": {"expression": "2"}},
        ]
        arguments = {"workflowId": "w", "name": "Build <i>it</i>", "steps": steps}
        await seen.turn.run([keephold.ToolCall("1", "execute_workflow_async", arguments)])
        (fact,) = (await seen.control.store_view.handles(kind="workflow"))["handles"]
        async with asyncio.timeout(PATIENCE):
            while (await seen.control.runtime_view.workflow(fact["uid"]))["current"] != ["slow"]:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.005)
        page = await seen.page(f"/handles/{fact['uid']}")
        drawn = {each.attributes["class"].split()[1]: each.text for each in page.all("g")}
        assert drawn.keys() == {"node-done", "node-current", "node-to-come"}
        assert "slow" in drawn["node-current"] and "a<b>" in drawn["node-done"]
        assert [" ".join(each.text.split())[:4] for each in page.all("p", class_="graph-step")] == [
            "a<b>",
            "slow",
            "afte",
        ]
        await seen.control.abort(fact["uid"])


async def test_a_terminal_is_shown_as_it_is_when_the_page_is_made() -> None:
    shell = keephold.terminal(["bash", "--norc", "--noediting"], name="shell", env={"PS1": "$ "}, rows=5, cols=40)
    async with dashboard([shell]) as seen:
        uid = await started(seen, "shell", "s")
        await seen.control.apply(uid, "printf '\\033[1;31m<b>red</b>\\033[0m'\r")
        async with asyncio.timeout(PATIENCE):
            while True:
                page = await seen.page(f"/handles/{uid}")
                (screen,) = [each for each in page.all("pre") if "data-screen" in each.attributes]
                if any(each.attributes.get("class") == "bold f1" for each in screen.inside):
                    break
        assert [each.text for each in screen.inside if each.attributes["class"] == "bold f1"] == ["<b>red</b>"]
        await seen.control.abort(uid)
        assert not (await seen.page(f"/handles/{uid}")).all("live-terminal")


@pytest.mark.parametrize("path", ["/handles/nobody", "/handles/%00", "/conversations/nobody"])
async def test_what_is_not_there_is_said_so_on_a_page(path: str) -> None:
    async with dashboard() as seen:
        answer = await seen.http.get(path)
        assert answer.status_code == 404
        assert Page(answer.text).all("main")


async def test_an_id_leads_to_the_newest_handle_that_has_it() -> None:
    async with dashboard([prints]) as seen:
        for _ in range(2):
            await started(seen, "prints", "twice", text="x")
            await ended(seen, "twice")
        newest = (await seen.control.store_view.handles(sort="newest"))["handles"][0]
        answer = await seen.http.get("/handles/twice")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/handles/{newest['uid']}")
        assert (await seen.http.get("/handles/twic")).status_code == 404


# Terminals as HTML


def test_K4_a_screen_is_text_in_spans_whatever_is_on_it() -> None:
    rows = ((StyledRun("<b>&\"'", Style(1, (255, 0, 0), frozenset({"bold"}))), StyledRun("\u202eplain", Style())),)
    assert screen_html(rows, None) == '<span class="bold f1 b196">&lt;b&gt;&amp;&quot;&#x27;</span>plain'


@pytest.mark.parametrize(
    ("cursor", "drawn"),
    [
        ((1, 1), '<span class="cursor">a</span>b'),
        ((1, 2), 'a<span class="cursor">b</span>'),
        ((1, 4), 'ab <span class="cursor"> </span>'),
        ((2, 1), "ab"),
        (None, "ab"),
    ],
)
def test_the_cursor_is_drawn_where_it_stands(cursor: tuple[int, int] | None, drawn: str) -> None:
    assert screen_html(((StyledRun("ab", Style()),),), cursor) == drawn


def test_a_character_of_two_columns_takes_two_and_what_follows_keeps_its_place() -> None:
    drawn = screen_html(((StyledRun("中e\u0301x", Style()),),), (1, 3))
    assert drawn == '<span class="wide">中</span><span class="cursor">e\u0301</span>x'


def test_painted_bytes_are_read_as_rows_of_runs() -> None:
    painted = "\x1b[?1h\x1b[0m\x1b[1m\x1b[38;5;208mA\x1b[0m\r\n\x1b[48;2;1;2;3m\x1b[4:3mB\x1b[0m\x7f\x1b[2;1H"
    assert rows_of(painted, 3) == (
        (StyledRun("A", Style(208, None, frozenset({"bold"}))),),
        (StyledRun("B", Style(None, (1, 2, 3), frozenset({"underline"}))), StyledRun(" ", Style())),
        (),
    )


def test_the_palette_has_every_colour_and_the_nearest_ones() -> None:
    assert re.findall(r"\.screen \.f(\d+) { color: #[0-9a-f]{6}; }", palette_css()) == [*map(str, range(256))]
    assert ".screen .b208 { background: #ff8700; }" in palette_css()
    assert all(rgb(nearest(*rgb(number))) == rgb(number) for number in range(16, 256))
