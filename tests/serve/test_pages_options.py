"""What a question is answered with on the pages: a button for each option where they are few and short."""

import asyncio
from typing import Any

import pytest
from tests.serve.fake_control import FakeControl, NoScreens, need, question
from tests.serve.pages import Element, Page, browser, dashboard
from tests.turn.calls import TALKING, call, replies, spawn, texts

import keephold
from keephold import Call, Question

SELECT = {"Select": {"options": ["one", "two"]}}
LONG = {"Select": {"options": ["x" * 41, "two"]}}


@keephold.tool(actions=TALKING)
async def twice(call: Call) -> str:
    first = await call.ask(Question(id="q", text="Well?", answer_type=SELECT))
    return f"{first}, {await call.ask(Question(id='q', text='Well?', answer_type=SELECT))}"


async def form(options: list[str], default: str | None = None) -> Element:
    """The form that answers a question with these options."""
    control = FakeControl()
    asks = question("Which?", {"Select": {"options": options}}, default=default)
    control.open = [need("n-1", "question", "t", question=asks)]
    async with browser(control, NoScreens()) as http:
        page = Page((await http.get("/")).text)
    return page.all("form", action="/do/requests/n-1")[0]


def values(form: Element, tag: str) -> list[str]:
    """What the buttons or the fields of a form send as the answer."""
    return [e.attributes["value"] for e in form.inside if e.tag == tag and e.attributes.get("name") == "value"]


@pytest.mark.parametrize("options", [["one"], [str(n) for n in range(6)], ["x" * 40, "<b>&\"'"]])
async def test_a_few_short_options_have_a_button_each(options: list[str]) -> None:
    asked = await form(options, default=options[0])
    assert values(asked, "button") == options and values(asked, "input") == []
    buttons = [each for each in asked.inside if each.tag == "button" and "hidden" not in each.attributes]
    assert [each.text for each in buttons] == options
    assert ["button-main" in each.attributes["class"] for each in buttons] == [True] + [False] * (len(options) - 1)
    assert [each.text for each in asked.inside if each.tag == "legend"] == ["Which?"]


@pytest.mark.parametrize(
    "options",
    [[str(n) for n in range(7)], ["x" * 41, "b"], ["", "b"], [" ", "b"], ["a\nb", "b"], ["a\u202eb", "b"]],
    ids=["many", "long", "empty", "blank", "two lines", "unseen"],
)
async def test_options_that_are_many_or_long_or_cannot_be_seen_are_a_list(options: list[str]) -> None:
    asked = await form(options)
    assert len(values(asked, "input")) == len(options) and values(asked, "button") == []
    assert asked.text.split()[-1] == "Answer"


@pytest.mark.parametrize(
    "asked",
    [
        need("n-1", "permission", "t", action="spawn", arguments={"a": 1}, may_remember=True),
        need("n-1", "question", "t", question=question("Well?", "Boolean"), may_remember=True),
        need("n-1", "question", "t", question=question("Well?", SELECT), may_remember=True),
        need("n-1", "question", "t", question=question("Well?", LONG), may_remember=True),
        need("n-1", "question", "t", question=question("Well?"), may_remember=True),
    ],
    ids=["permission", "yes or no", "buttons", "list", "text"],
)
async def test_what_is_to_be_remembered_is_ticked_before_a_button_that_sends_it(asked: dict[str, Any]) -> None:
    control = FakeControl()
    control.open = [asked]
    async with browser(control, NoScreens()) as http:
        form = Page((await http.get("/")).text).all("form", action="/do/requests/n-1")[0]
    seen = [each for each in form.inside if "hidden" not in each.attributes]
    pressed = [
        each.attributes.get("type") for each in seen if each.tag == "button" or "checkbox" in each.attributes.values()
    ]
    assert pressed[0] == "checkbox" and set(pressed[1:]) == {None}


CHOICES = [("permission", {}), ("Boolean", {"decision": "answer"}), ("Select", {"decision": "answer"})]


@pytest.mark.parametrize(("kind", "hidden"), CHOICES, ids=[kind for kind, _ in CHOICES])
async def test_a_form_that_is_sent_by_no_button_of_it_answers_nothing(kind: str, hidden: dict[str, str]) -> None:
    """Enter on its checkbox presses the first button there is, seen or not."""
    control = FakeControl()
    about: dict[str, Any] = {"action": "spawn", "arguments": {"a": 1}}
    if kind != "permission":
        about = {"question": question("Well?", SELECT if kind == "Select" else kind)}
    control.open = [need("n-1", "permission" if not hidden else "question", "t", may_remember=True, **about)]
    async with browser(control, NoScreens()) as http:
        form = Page((await http.get("/")).text).all("form", action="/do/requests/n-1")[0]
        first = next(each for each in form.inside if each.tag == "button")
        assert first.attributes == {"hidden": ""}
        fields = {e.attributes["name"]: e.attributes["value"] for e in form.inside if e.tag == "input"}
        assert fields.pop("remember") == "yes" and hidden.items() <= fields.items()
        refused = await http.post("/do/requests/n-1", data={**fields, "remember": "yes"})
    assert refused.status_code == 422 and control.done == [] and len(control.open) == 1
    page = Page(refused.text)
    assert "nothing was chosen" in page.texts("p", class_="problem")[0]
    (tick,) = page.all("input", name="remember")
    assert "checked" in tick.attributes, "what was put in is still there"
    if kind == "permission":
        (area,) = page.all("textarea")
        assert area.text.split() == ["{", '"a":', "1", "}"]
        assert not any("open" in each.attributes for each in page.all("details", data_key="edit-n-1"))


async def test_a_form_that_is_sent_twice_answers_one_question() -> None:
    """Also if the next question is the same one again."""
    async with dashboard([twice]) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("twice")))
        first = await seen.need()
        await seen.answer(first, decision="answer", value="one")
        second = await seen.need(after=first)
        again = await seen.answer(first, decision="answer", value="one")
        assert again.headers["location"].startswith("/?said=gone")
        assert [need["id"] for need in await seen.control.requests.page()] == [second["id"]]
        await seen.answer(second, decision="answer", value="two")
        assert await running == ["one, two"]


async def test_C6_an_answer_by_the_page_of_a_handle_names_its_question() -> None:
    async with dashboard([twice]) as seen:
        await replies(seen.turn, spawn("twice", "t"))
        (fact,) = (await seen.control.store_view.handles())["handles"]
        await seen.need()
        sent = {"value": "one", "question": fact["question"]["key"]}
        assert (await seen.http.post(f"/do/handles/{fact['uid']}/apply", data=sent)).status_code == 303
        (later,) = (await seen.control.store_view.handles())["handles"]
        assert later["question"]["key"] != fact["question"]["key"]
        refused = await seen.http.post(f"/do/handles/{fact['uid']}/apply", data=sent)
        assert refused.status_code == 409
        assert (await seen.control.runtime_view.handle(fact["uid"]))["question"]["key"] == later["question"]["key"]
