"""What is approved on a page is what the page shows: nothing hides, nothing reorders, and a long text was seen (K4)."""

import asyncio
from typing import Any

import pytest
from tests.attacks.test_shown import HEBREW, HIDDEN
from tests.serve.pages import Page, dashboard
from tests.turn.calls import call, texts

import keephold
from keephold.serve.dashboard.rendering import _environment, isolated_html, said
from keephold.text import exact, exact_json, readable_json

LONG = "\n".join(map(str, range(50)))


@keephold.tool(run="ask")
async def echo(text: str) -> str:
    """Say it again."""
    return text


@keephold.tool(result="ask")
async def read(text: str) -> str:
    """Read what is there."""
    return text


@keephold.tool
async def choose(call: keephold.Call, options: list[str]) -> str:
    """Let the user choose."""
    return str(await call.ask(keephold.Question(id="q", text="Which?", answer_type={"Select": {"options": options}})))


@keephold.tool
async def agree(call: keephold.Call, text: str, before: str | None = None) -> str:
    """Ask the user yes or no."""
    return str(await call.ask(keephold.Question(id="q", text=text, answer_type="Boolean", pre_amble=before)))


TOOLS = [echo, read, choose, agree]


@pytest.mark.parametrize("text", [*HIDDEN, "a\x1b[8mhidden\x1b[0m", "a\rb", "\u00a0"])
@pytest.mark.parametrize("tool", ["echo", "read"])
async def test_K4_nothing_hides_in_what_a_page_lets_through(tool: str, text: str) -> None:
    """The page shows escapes; the original is used, also if the form that edits is sent unchanged."""
    shown = exact_json(readable_json({"text": text})) if tool == "echo" else exact(text)
    for fields in ({"decision": "approve"}, {"decision": "edit", "value": shown}):
        async with dashboard(TOOLS) as seen:
            running = asyncio.ensure_future(texts(seen.turn, call(tool, text=text)))
            need = await seen.need()
            page = await seen.page("/")
            (box,) = [box for box in page.all("pre") if "data-whole" in box.attributes]
            assert box.text == shown and page.all("textarea")[0].text.strip() == shown.strip()
            await seen.answer(need, **fields)
            assert await running == [text]


async def test_K4_an_edited_result_is_delivered_as_it_was_shown() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("read", text="a\u200bb")))
        need = await seen.need()
        (area,) = (each.text for each in (await seen.page("/")).all("textarea"))
        await seen.answer(need, decision="edit", value=f"{area.strip()}!")
        assert await running == ["a<U+200B>b!"]


@pytest.mark.parametrize("decision", ["approve", "edit"])
@pytest.mark.parametrize("tool", ["echo", "read"])
async def test_P1_a_long_text_is_not_let_through_before_it_was_seen(tool: str, decision: str) -> None:
    """Scripts say so when all of it was on the screen; without scripts the user does."""
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call(tool, text=LONG if tool == "read" else LONG * 10)))
        need = await seen.need()
        page = await seen.page("/")
        assert len(page.all("input", name="seen")) == 2  # in the form that approves, and in the one that edits
        fields: dict[str, Any] = {"value": page.all("textarea")[0].text} if decision == "edit" else {}
        refused = await seen.answer(need, decision=decision, **fields)
        assert refused.status_code == 422 and not running.done()
        assert "look at all of the lines" in Page(refused.text).texts("p", class_="problem")[0]
        await seen.answer(need, decision=decision, seen="yes", **fields)
        assert LONG in (await running)[0]


async def test_P1_a_long_text_is_denied_without_being_read() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("read", text=LONG)))
        await seen.answer(await seen.need(), decision="deny")
        assert "skipped by user" in (await running)[0]


@pytest.mark.parametrize("asked", [{"text": "Send it?", "before": LONG}, {"text": LONG}])
async def test_P7_a_yes_to_a_long_question_needs_all_of_it_to_have_been_seen(asked: dict[str, str]) -> None:
    async with dashboard(TOOLS) as seen:
        for value in ("false", "true"):
            running = asyncio.ensure_future(texts(seen.turn, call("agree", **asked)))
            need = await seen.need()
            page = await seen.page("/")
            (box,) = [box for box in page.all("pre") if "data-whole" in box.attributes]
            assert box.text == LONG and "data-long" in box.attributes and page.all("input", name="seen")
            buttons = {each.attributes["value"]: each.attributes for each in page.all("button", name="value")}
            assert "data-approves" in buttons["true"] and "data-approves" not in buttons["false"]
            for word in ("true", "yes", "TRUE") if value == "true" else ():
                refused = await seen.answer(need, decision="answer", value=word)
                assert refused.status_code == 422 and not running.done()
                assert "look at all of the lines" in Page(refused.text).texts("p", class_="problem")[0]
            await seen.answer(need, decision="answer", value=value, **({"seen": "yes"} if value == "true" else {}))
            assert await running == [value.title()]


@pytest.mark.parametrize("text", [*HIDDEN, "a\x1b[8mhidden\x1b[0m", "a\rb", "\u00a0"])
def test_K4_nothing_hides_in_a_question_that_a_yes_answers(text: str) -> None:
    question = {"id": "q", "text": text, "pre_amble": text, "answer_type": "Boolean", "default": None, "secret": False}
    environment = _environment()
    macros = environment.get_template("macros.html").make_module({"here": "/"})
    page = Page(str(macros.question_text(question)))  # type: ignore[attr-defined]
    assert [each.text for each in page.all("pre")] == page.texts("p", class_="question") == [exact(text)]


@pytest.mark.parametrize("count", [2, 7])  # a button for each, or a list
async def test_Q1_an_option_with_characters_that_cannot_be_seen_can_be_chosen(count: int) -> None:
    options = [f"yes\u200b{number}" for number in range(count)]
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("choose", options=options)))
        need = await seen.need()
        page = await seen.page("/")
        assert "yes<U+200B>1" in " ".join(page.texts("span"))
        (radio,) = [each for each in page.all("input", name="value") if each.attributes["value"] == options[1]]
        await seen.answer(need, decision="answer", value=radio.attributes["value"])
        assert await running == [options[1]]


def test_K4_lines_of_a_string_are_shown_as_lines_in_a_frame_of_their_own() -> None:
    given = {"path": "C:\\new", "content": 'a <b>\n  "path": "x"\\\n'}
    assert str(isolated_html(readable_json(given))) == (
        '{\n  &#34;path&#34;: &#34;C:\\\\new&#34;,\n  &#34;content&#34;: <span class="lines">&#34;a &lt;b&gt;\\n<br>'
        "  \\&#34;path\\&#34;: \\&#34;x\\&#34;\\\\\\n<br>&#34;</span>\n}"
    )
    assert "\\ufffa" in str(isolated_html(readable_json({"a": "\ufffa"})))  # no text makes a tag


def test_K4_text_from_right_to_left_is_isolated_on_pages() -> None:
    assert str(isolated_html(readable_json({HEBREW: HEBREW}))) == (
        f"{{\n  &#34;<bdi>{HEBREW}</bdi>&#34;: &#34;<bdi>{HEBREW}</bdi>&#34;\n}}"
    )
    assert str(isolated_html(f"<b>\n{HEBREW}")) == f"&lt;b&gt;\n<bdi>{HEBREW}</bdi>"
    assert said("allowed", HEBREW) == f"<bdi>{HEBREW}</bdi> may run."
