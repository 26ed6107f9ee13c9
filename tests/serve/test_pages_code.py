"""What stands between backticks is shown as code, and nothing of it is left out; nothing else of a text means anything
(K4)."""

import pytest
from tests.serve.fake_control import FakeControl, NoScreens, need, question
from tests.serve.pages import Page, browser

from keephold import KeepholdError
from keephold.serve.dashboard.rendering import coded

TEXT = "drop `legacy_id`, not `<b>id</b>`"
CODE = ["`legacy_id`", "`<b>id</b>`"]


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Handle `x` not found", "Handle <code>`x`</code> not found"),
        ("`a``b`", "`a``b`"),
        ("`a` `b`", "<code>`a`</code> <code>`b`</code>"),
        ("```\nx\n```", "```\nx\n```"),
        ("``x``", "``x``"),
        ("one ` alone", "one ` alone"),
        ("two ` ` with nothing", "two ` ` with nothing"),
        ("not `over\nlines`", "not `over\nlines`"),
        ("`<script>`", "<code>`&lt;script&gt;`</code>"),
        ("<code>`</code>`", "&lt;code&gt;<code>`&lt;/code&gt;`</code>"),
        ('`"><img src=x onerror=alert(1)>`', "<code>`&#34;&gt;&lt;img src=x onerror=alert(1)&gt;`</code>"),
        ("`\x1b[31mred\x1b[0m\u202e`", "<code>`red&lt;U+202E&gt;`</code>"),
        ("**bold** [x](javascript:1) _i_ # h", "**bold** [x](javascript:1) _i_ # h"),
        ("", ""),
    ],
)
def test_K4_only_backticks_mean_something(text: str, html: str) -> None:
    assert str(coded(text)) == html


async def codes(control: FakeControl, path: str, tag: str, **attributes: str) -> list[str]:
    """What is code in the elements like that."""
    async with browser(control, NoScreens()) as http:
        html = (await http.get(path)).text
    assert "<b>" not in html
    return [each.text for one in Page(html).all(tag, **attributes) for each in one.inside if each.tag == "code"]


async def test_a_question_and_what_was_wrong_with_its_answer() -> None:
    control = FakeControl()
    asks = question(TEXT, {"Select": {"options": ["`a`", "b"]}}, pre_amble=TEXT)
    control.open = [need("n-1", "question", "t", question=asks, problem=TEXT)]
    for part in ("question", "preamble", "problem"):
        assert await codes(control, "/", "p", class_=part) == CODE
    assert await codes(control, "/", "button", value="`a`") == ["`a`"]
    control.open = [need("n-1", "question", "t", question=question(TEXT))]
    assert await codes(control, "/", "label") == CODE


async def test_K4_who_approves_sees_all_of_it() -> None:
    control = FakeControl()
    options = ["`x`", "x"]
    asks = question("Run this: echo `rm -rf ~`?", {"Select": {"options": options}}, pre_amble="`a` ``b``")
    control.open = [need("n-1", "question", "t", question=asks)]
    async with browser(control, NoScreens()) as http:
        page = Page((await http.get("/")).text)
    assert page.texts("p", class_="question") == ["Run this: echo `rm -rf ~`?"] == page.texts("legend")
    assert page.texts("p", class_="preamble") == ["`a` ``b``"]
    assert page.texts("button", name="value") == options


async def test_how_something_ended_and_what_models_are_told() -> None:
    control = FakeControl()
    for fact in control.listed:
        fact |= {"message": TEXT}
    for path in ("/", "/handles"):  # done and aborted; failed and timed out
        for kind in ("why", "why wrong"):
            assert await codes(control, path, "span", class_=kind) == CODE * 2
    assert await codes(control, "/notifications", "p", class_="card-text") == ["`tests`"]
    assert await codes(control, "/notifications", "span", class_="card-text") == ["`tests`", "`lint`", "`migrate`"]


async def test_a_refusal() -> None:
    control = FakeControl()
    control.refusal = KeepholdError("Handle `<b>` is stopped", code="not_running")
    async with browser(control, NoScreens()) as http:
        page = Page((await http.post("/do/handles/x/apply", data={"value": "1"})).text)
    (told,) = page.all("p", class_="flash flash-wrong")
    assert [each.text for each in told.inside if each.tag == "code"] == ["`<b>`"]
