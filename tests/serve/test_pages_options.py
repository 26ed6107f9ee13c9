"""What a question is answered with on the pages: a button for each option where they are few and short."""

import asyncio

import pytest
from tests.serve.fake_control import FakeControl, NoScreens, need, question
from tests.serve.pages import Element, Page, browser, dashboard
from tests.turn.calls import TALKING, call, replies, spawn, texts

import holdfast
from holdfast import Call, Question

SELECT = {"Select": {"options": ["one", "two"]}}


@holdfast.tool(actions=TALKING)
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
    return page.all("form", action="/do/needs/n-1")[0]


def values(form: Element, tag: str) -> list[str]:
    """What the buttons or the fields of a form send as the answer."""
    return [e.attributes["value"] for e in form.inside if e.tag == tag and e.attributes.get("name") == "value"]


@pytest.mark.parametrize("options", [["one"], [str(n) for n in range(6)], ["x" * 40, "<b>&\"'"]])
async def test_a_few_short_options_have_a_button_each(options: list[str]) -> None:
    asked = await form(options, default=options[0])
    assert values(asked, "button") == options and values(asked, "input") == []
    buttons = [each for each in asked.inside if each.tag == "button"]
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


async def test_a_form_that_is_sent_twice_answers_one_question() -> None:
    """Also if the next question is the same one again."""
    async with dashboard([twice]) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("twice")))
        first = await seen.need()
        await seen.answer(first, decision="answer", value="one")
        second = await seen.need(after=first)
        again = await seen.answer(first, decision="answer", value="one")
        assert again.headers["location"].startswith("/?said=gone")
        assert [need["id"] for need in await seen.control.needs()] == [second["id"]]
        await seen.answer(second, decision="answer", value="two")
        assert await running == ["one, two"]


async def test_C6_an_answer_by_the_page_of_a_handle_names_its_question() -> None:
    async with dashboard([twice]) as seen:
        await replies(seen.turn, spawn("twice", "t"))
        (fact,) = (await seen.control.handles())["handles"]
        await seen.need()
        sent = {"value": "one", "question": fact["question"]["key"]}
        assert (await seen.http.post(f"/do/handles/{fact['uid']}/apply", data=sent)).status_code == 303
        (later,) = (await seen.control.handles())["handles"]
        assert later["question"]["key"] != fact["question"]["key"]
        refused = await seen.http.post(f"/do/handles/{fact['uid']}/apply", data=sent)
        assert refused.status_code == 409
        assert (await seen.control.handle(fact["uid"]))["question"]["key"] == later["question"]["key"]
