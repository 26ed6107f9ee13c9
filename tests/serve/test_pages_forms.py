"""What a person does on the pages, by forms alone: allow, deny, edit, answer, abort, send, revoke."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from tests.durable.lives import approval, crash_looped
from tests.patience import PATIENCE
from tests.serve.fake_control import FakeControl, NoScreens
from tests.serve.pages import Page, browser, dashboard
from tests.turn.calls import STATEFUL, TALKING, call, replies, spawn, texts, wait_all

import keephold
from keephold import Call, KeepholdError, Key, Question
from keephold.serve.dashboard.rendering import card_key

SELECT = {"Select": {"options": ["one", "two"]}}


@keephold.tool(run="ask")
async def echo(text: str) -> str:
    """Say it again."""
    return f"echo {text}"


@keephold.tool(result="ask")
async def private() -> str:
    return "a\r\nsecret"


@keephold.tool
async def asks(call: Call, answer_type: Any = "Text", secret: bool = False) -> str:
    question = Question(id="q", text="Well?", answer_type=answer_type, secret=secret)
    return f"answer {json.dumps(await call.ask(question))}"


@keephold.tool(actions=TALKING)
async def listens(call: Call) -> str:
    return str(await call.input())


TOOLS = [echo, private, asks, listens]


def place(answer: httpx2.Response) -> str:
    """Where a form leads."""
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


@pytest.mark.parametrize(
    ("fields", "said", "result"),
    [
        ({"decision": "approve"}, "allowed", "echo hi"),
        ({"decision": "deny"}, "denied", "Tool skipped by user."),
        ({"decision": "deny", "reason": "not <now>"}, "denied", "Tool skipped by user: not <now>"),
        ({"decision": "edit", "value": '{\r\n "text": "ho"\r\n}'}, "allowed", "echo ho"),
    ],
)
async def test_P1_a_call_is_allowed_denied_or_edited(fields: dict[str, str], said: str, result: str) -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("echo", text="hi")))
        need = await seen.need()
        led = place(await seen.answer(need, next="/handles?state=live&said=gone&of=x", **fields))
        assert led == f"/handles?state=live&said={said}&of=echo"
        assert await running == [result]
        assert "echo" in (await seen.page(led)).texts("p", class_="flash")[0]


FORM = {
    "Form": {
        "properties": {
            "name": {"type": "string", "title": "Your <name>"},
            "age": {"type": "integer"},
            "sure": {"type": "boolean", "default": True},
            "colour": {"type": "string", "enum": ["red", "green"]},
        },
        "required": ["name", "age"],
    }
}


async def test_Q1_a_form_is_one_card_with_fields() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("asks", answer_type=FORM)))
        need = await seen.need()
        page = await seen.page("/")
        labels = page.texts("label")
        assert "Your <name>" in labels and "age (whole number)" in labels and "sure (optional)" in labels
        assert page.texts("option", selected="") == ["Yes"]
        typed = {"field.name": "Rose", "field.age": "old", "field.sure": "false", "field.colour": ""}
        again = await seen.answer(need, decision="answer", value="{}", **typed)
        assert again.status_code == 422 and "is not of type" in again.text and 'value="old"' in again.text
        place(await seen.answer(need, decision="answer", value="{}", **{**typed, "field.age": "7"}))
        assert await running == ['answer {"name": "Rose", "age": 7, "sure": false}']


async def test_Q1_a_form_is_answered_over_the_api_by_an_object() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("asks", answer_type=FORM)))
        need = await seen.need()
        wrong = await seen.control.decide(need["id"], {"decision": "answer", "value": {"name": "Rose"}}, by="x")
        assert wrong["status"] == "again" and "age" in (wrong["problem"] or "")
        await seen.control.decide(need["id"], {"decision": "answer", "value": {"name": "Rose", "age": 7}}, by="x")
        assert await running == ['answer {"name": "Rose", "age": 7}']


async def test_P5_what_is_remembered_is_not_asked_again() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("echo", text="a")))
        await seen.answer(await seen.need(), decision="approve", remember="yes")
        await running
        assert await texts(seen.turn, call("echo", text="b")) == ["echo b"]


async def test_what_cannot_be_taken_is_shown_again_with_the_reason_and_nothing_is_lost() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("echo", text="hi")))
        need = await seen.need()
        typed = '{"text": "a long text",\n'
        answer = await seen.answer(need, decision="edit", value=typed)
        assert answer.status_code == 422
        page = Page(answer.text)
        (area,) = page.all("textarea", id=f"edit-{card_key(need)}")
        assert area.text.strip() == typed.strip()
        assert {field.attributes["value"] for field in page.all("input", name="next")} == {"/"}
        assert "not JSON" in page.texts("p", class_="problem")[0]
        assert not page.all("p", class_="flash flash-wrong")  # it is said once, in the card
        answer = await seen.answer(need, decision="edit", value='{"text": 7}')  # JSON, but not what the tool takes
        page = Page(answer.text)
        assert answer.status_code == 422 and "must be a string" in page.texts("p", class_="problem")[0]
        assert page.all("textarea", id=f"edit-{card_key(need)}")[0].text.strip() == '{"text": 7}'
        await seen.answer(need, decision="edit", value='{"text": "ho"}')
        assert await running == ["echo ho"]


@pytest.mark.parametrize(
    ("answer_type", "value", "result"),
    [("Boolean", "true", True), ("Boolean", "false", False), (SELECT, "two", "two"), ("Text", " a ü ", " a ü ")],
)
async def test_Q1_a_question_is_answered(answer_type: Any, value: str, result: Any) -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("asks", answer_type=answer_type)))
        answer = await seen.answer(await seen.need(), decision="answer", value=value)
        assert place(answer) == "/?said=answered&of=asks"
        assert json.loads((await running)[0].removeprefix("answer ")) == result


async def test_Q7_a_question_that_is_not_answered_ends_the_call() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(seen.turn.run([call("asks")]))
        assert place(await seen.answer(await seen.need(), decision="cancel")) == "/?said=cancelled&of=asks"
        (response,) = await running
        assert response.is_error and response.code == "input_cancelled"


async def test_K5_a_secret_is_typed_unseen_and_shown_nowhere() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("asks", secret=True)))
        need = await seen.need()
        page = await seen.page("/")
        assert page.all("input", type="password", name="value") and not page.all("input", type="text", name="value")
        answer = await seen.answer(need, decision="nonsense", value="swordfish")
        assert answer.status_code == 422 and "swordfish" not in answer.text
        answer = await seen.answer(need, decision="answer", value="swordfish")
        assert "swordfish" not in place(answer)
        await running


async def test_P5_a_result_is_let_through_edited_as_it_was_typed() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("private")))
        answer = await seen.answer(await seen.need(), decision="edit", value="one\r\ntwo")
        assert place(answer) == "/?said=delivered&of=private"
        assert await running == ["one\ntwo"]


async def test_an_answer_that_nobody_needs_any_more_is_told_so() -> None:
    async with dashboard(TOOLS) as seen:
        running = asyncio.ensure_future(texts(seen.turn, call("echo", text="hi")))
        need = await seen.need()
        await seen.answer(need, decision="approve")
        await running
        assert place(await seen.answer(need, decision="deny", next="/keys")) == "/keys?said=gone"


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil", "evil", "javascript:alert(1)",
     "/x\r\nSet-Cookie: a=b", "/\t/evil.example", "", "///evil.example"],
)  # fmt: skip
async def test_K1_a_form_leads_to_a_page_of_ours_and_nowhere_else(target: str) -> None:
    async with browser(FakeControl(), NoScreens()) as http:
        answer = await http.post("/do/requests/n-1", data={"decision": "approve", "next": target})
    assert place(answer) == "/?said=allowed&of=" + FakeControl().open[0]["tool"]
    assert "set-cookie" not in answer.headers


async def test_the_word_in_the_address_says_only_what_we_say() -> None:
    async with browser(FakeControl(), NoScreens()) as http:
        for said in ("<b>call 555</b>", "nonsense", ""):
            assert not Page((await http.get("/", params={"said": said})).text).all("p", class_="flash")
        for of in ("it. Call 555 now", "x" * 81, "<b>"):
            page = Page((await http.get("/", params={"said": "allowed", "of": of})).text)
            assert page.texts("p", class_="flash") == ["Allowed: it runs."]


async def test_C7_a_handle_is_aborted_once() -> None:
    async with dashboard(TOOLS) as seen:
        await replies(seen.turn, spawn("listens", "l"))
        uid = (await seen.control.store_view.handles())["handles"][0]["uid"]
        assert place(await seen.http.post(f"/do/handles/{uid}/abort", data={"next": "/"})) == "/?said=aborted&of=l"
        assert (await seen.control.runtime_view.handle(uid))["ended_by"] == "abort"
        assert place(await seen.http.post(f"/do/handles/{uid}/abort", data={"next": "/"})) == "/?said=stopped&of=l"


async def test_R8_a_call_that_killed_its_process_is_retried_once() -> None:
    async with dashboard(TOOLS) as seen:
        uid = await crash_looped(seen.control.runtime, "listens")
        page = Page((await seen.http.get(f"/handles/{uid}")).text)
        assert page.all("form", action=f"/do/handles/{uid}/retry")
        there = place(await seen.http.post(f"/do/handles/{uid}/retry", data={"next": "/"}))
        new = (await seen.control.store_view.handles(search="looped", state="live"))["handles"][0]["uid"]
        assert there == f"/handles/{new}?said=retried&of=looped" and new != uid
        assert uid in (await seen.http.get(there)).text
        again = await seen.http.post(f"/do/handles/{uid}/retry", data={"next": "/"})
        assert again.status_code == 409 and new in again.text


@keephold.tool(actions=STATEFUL)
async def breaks() -> str:
    raise keephold.ToolError("broken")


async def test_R8_a_handle_that_failed_is_run_again_as_a_new_one_and_one_that_is_done_is_not() -> None:
    async with dashboard([breaks, echoes, listens]) as seen:
        await replies(seen.turn, spawn("breaks", "b"))
        asked = asyncio.create_task(replies(seen.turn, spawn("echoes", "e", text="hi")))
        await seen.control.abort((await seen.need())["handle"])
        await asked
        uids = {each["id"]: each["uid"] for each in (await seen.control.store_view.handles())["handles"]}
        page = await seen.page(f"/handles/{uids['b']}")
        assert page.all("form", action=f"/do/handles/{uids['b']}/retry")
        there = place(await seen.http.post(f"/do/handles/{uids['b']}/retry", data={"next": "/"}))
        assert there.startswith("/handles/") and uids["b"] not in there
        again = await seen.control.runtime_view.handle(there.split("/")[2].partition("?")[0])
        assert again["retry_of"] == uids["b"] and again["journal"] == [] and again["retried_by"] is None
        assert (await seen.control.runtime_view.handle(uids["b"]))["retried_by"] == again["uid"]
        page = await seen.page(f"/handles/{uids['b']}")
        assert page.all("a", href=f"/handles/{again['uid']}"), "each links to the other"
        place(await seen.http.post(f"/do/handles/{uids['e']}/retry", data={"next": "/"}))
        need = await seen.need()  # it was never allowed, so it asks again
        assert need["tool"] == "echoes" and need["handle"] != uids["e"]
        await seen.answer(need, decision="approve")
        done = await seen.control.wait(all=[need["handle"]])
        assert done["completed"][0]["result"] == "echo hi"
        refused = await seen.http.post(f"/do/handles/{need['handle']}/retry", data={"next": "/"})
        assert refused.status_code == 409 and "did not fail" in refused.text
        page = await seen.page(f"/handles/{need['handle']}")
        assert not page.all("form", action=f"/do/handles/{need['handle']}/retry")


@keephold.tool(actions=STATEFUL, run="ask")
async def echoes(text: str) -> str:
    return f"echo {text}"


async def test_P1_several_cards_are_denied_together_and_allowed_only_if_they_were_seen() -> None:
    async with dashboard([echoes, listens]) as seen:
        asked = asyncio.create_task(
            replies(seen.turn, *(spawn("echoes", f"e{number}", text=str(number)) for number in range(4)))
        )
        async with asyncio.timeout(PATIENCE):
            while len(cards := await seen.control.requests.page()) < 4:  # noqa: ASYNC110 (as in `Dashboard.need`)
                await asyncio.sleep(0.005)
        page = await seen.page("/")
        (group,) = page.all("div", class_="request-group")
        assert "4 calls of echoes" in " ".join(group.text.split())
        assert [each.attributes["data-card"] for each in group.inside if "data-card" in each.attributes] == [
            f"{each['id']}/{each['digest']}" for each in cards
        ]
        names = [f"{each['id']}/{each['digest']}" for each in cards]
        form = {"cards": " ".join(names[:2]), "next": "/"}
        for wrong in ({"decision": "approve"}, {"decision": "edit", "seen": "yes"}):
            assert (await seen.http.post("/do/requests", data={**form, **wrong})).status_code == 422
        allowed = {"cards": f"{names[0]} {cards[1]['id']}/other nonsense", "decision": "approve", "seen": "yes"}
        assert place(await seen.http.post("/do/requests", data=allowed)) == "/?said=several-allowed&of=1"
        denied = {"cards": " ".join(names), "decision": "deny", "reason": "too many"}
        assert place(await seen.http.post("/do/requests", data=denied)) == "/?said=several-denied&of=3"
        said = [json.dumps(each) for each in await asked]
        assert "too many" not in said[0] and all("too many" in each for each in said[1:])


async def test_K9_the_token_is_copied_from_a_page_that_does_not_show_it() -> None:
    async with dashboard(TOOLS) as seen:
        answer = await seen.http.post("/do/token", data={"next": "/"})
        assert (answer.text, answer.headers["cache-control"]) == ("token", "no-store")
        assert "Bearer token" not in (await seen.http.get("/tools")).text
        assert (await seen.http.get("/do/token")).status_code == 405


async def test_C6_something_is_sent_to_a_handle_and_a_refusal_says_why() -> None:
    async with dashboard(TOOLS) as seen:
        await replies(seen.turn, spawn("listens", "l"))
        uid = (await seen.control.store_view.handles())["handles"][0]["uid"]
        assert (await seen.http.post(f"/do/handles/{uid}/apply", data={"next": "/"})).status_code == 422
        answer = await seen.http.post(f"/do/handles/{uid}/apply", data={"value": "hello", "next": "/handles"})
        assert place(answer) == "/handles?said=sent"
        assert "hello" in (await texts(seen.turn, wait_all("l")))[0]
        answer = await seen.http.post(f"/do/handles/{uid}/apply", data={"value": "more", "next": "/handles"})
        assert answer.status_code == 409 and "stopped" in answer.text
        page = Page(answer.text)
        assert page.texts("p", class_="flash flash-wrong") and page.all("a", class_="button", href="/handles")


async def test_a_handle_that_is_not_there_is_a_page_that_says_so() -> None:
    async with dashboard(TOOLS) as seen:
        for act in ("abort", "apply"):
            answer = await seen.http.post(f"/do/handles/{'0' * 32}/{act}", data={"value": "x"})
            assert (
                answer.status_code == 404 and "not found" in Page(answer.text).texts("p", class_="flash flash-wrong")[0]
            )


async def test_D5_keys_are_revoked_by_conversation() -> None:
    keys: list[Key] = []
    async with dashboard([approval(keys, actions=STATEFUL)]) as seen:
        await replies(seen.turn, spawn("approve", "a"))
        assert (await seen.http.post("/do/keys/revoke", data={"next": "/"})).status_code == 422
        answer = await seen.http.post("/do/keys/revoke", data={"conversation": "main", "next": "/keys"})
        assert place(answer) == "/keys?said=revoked&of=main"
        assert (await seen.runtime.resolve(keys[0], {"status": "ok", "payload": 1})).status == "unknown_or_revoked"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"", "", 415),
        (b"value=%ff", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a=1" for _ in range(200)), "application/x-www-form-urlencoded", 400),
        (b"value=" + b"x" * (4 << 20), "application/x-www-form-urlencoded; charset=utf-8", 413),
    ],
)
async def test_K6_a_form_that_is_none_does_nothing(body: bytes, kind: str, status: int) -> None:
    control = FakeControl()
    async with browser(control, NoScreens()) as http:
        answer = await http.post("/do/requests/n-2", content=body, headers={"content-type": kind})
        assert answer.status_code == status and "text/html" in answer.headers["content-type"]
        assert (await http.get("/do/requests/n-2")).status_code == 405
    assert control.done == []


async def test_K4_the_words_of_a_refusal_are_text() -> None:
    control = FakeControl()
    control.refusal = KeepholdError("<b>no</b> \x1b[31mred", code="not_running")
    async with browser(control, NoScreens()) as http:
        answer = await http.post("/do/handles/x/apply", data={"value": "1"})
    assert answer.status_code == 409 and "<b>no</b>" not in answer.text and "\x1b" not in answer.text
    assert "<b>no</b> red" in Page(answer.text).texts("p", class_="flash flash-wrong")[0]


async def test_a_prompt_that_is_withdrawn_is_gone_from_the_page() -> None:
    async with dashboard([keephold.tool(actions=STATEFUL, run="ask")(_waits)]) as seen:
        spawning = asyncio.ensure_future(replies(seen.turn, spawn("_waits", "w")))
        await seen.need()
        assert (await seen.page("/")).all("article")
        uid = (await seen.control.store_view.handles())["handles"][0]["uid"]
        await seen.http.post(f"/do/handles/{uid}/abort", data={"next": "/"})
        await spawning
        assert not (await seen.page("/")).all("article")


async def _waits(call: Call) -> str:
    return "never asked for"
