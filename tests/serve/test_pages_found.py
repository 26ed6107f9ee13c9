"""What is found by an address that a person types: handles by their ids, and what is said where there is nothing."""

from tests.serve.application import application
from tests.serve.fake_control import FakeControl, NoScreens, fact, need
from tests.serve.pages import Page, browser, dashboard
from tests.turn.calls import TALKING, spawn

import keephold
from keephold import Call
from keephold.serve.dashboard.rendering import card_key


@keephold.tool(actions=TALKING)
async def waits(call: Call) -> str:
    return str(await call.input())


async def test_an_id_leads_to_its_newest_handle_and_of_several_conversations_to_a_choice() -> None:
    async with dashboard([waits]) as seen:
        await seen.turn.run([spawn("waits", "w")])
        (first,) = (await seen.control.store_view.handles())["handles"]
        led = await seen.http.get("/handles/w")
        assert led.status_code == 303 and led.headers["location"] == f"/handles/{first['uid']}"
        async with seen.runtime.turn("other") as other:
            await other.run([spawn("waits", "w")])
            page = await seen.page("/handles/w")
            uids = {fact["uid"] for fact in (await seen.control.store_view.handles())["handles"]}
            assert {f"/handles/{uid}" for uid in uids} <= {link.attributes.get("href", "") for link in page.all("a")}
            assert len(uids) == 2 and page.texts("h1") == ["w"]


async def test_nothing_is_a_page_for_browsers_and_a_line_for_programs() -> None:
    async with application() as served, served.client() as http:
        page = await http.get("/nosuch", headers={"accept": "text/html"})
        assert page.status_code == 404 and Page(page.text).texts("h1") == ["No such page"]
        assert (await http.get("/nosuch")).text == "Not Found"
        assert (await http.get("/api/nosuch", headers={"accept": "text/html"})).json()["error"]["code"] == "not_found"
        page = await http.get("/handles/nosuch")
        assert page.status_code == 404 and Page(page.text).title.startswith("No such handle")


async def test_an_empty_home_says_how_to_begin() -> None:
    async with dashboard([waits]) as seen:
        assert "http://localhost/mcp" in (await seen.http.get("/")).text
        await seen.turn.run([spawn("waits", "w")])
        assert "Get started" not in (await seen.http.get("/")).text


async def test_P5_what_is_remembered_lasts_as_long_as_is_said() -> None:
    control = FakeControl()
    of_a_desk, of_a_turn = fact("one", turn="d-0123456789ab"), fact("two", turn="t-1")
    control.listed = [of_a_desk, of_a_turn]
    control.open = [
        need(f"n-{number}", "permission", "deploy", handle=each["uid"], may_remember=True, until=until)
        for number, (each, until) in enumerate(zip(control.listed, (None, "turn"), strict=True))
    ]
    async with browser(control, NoScreens()) as http:
        told = Page((await http.get("/")).text).texts("label", class_="check")
    assert ["until you revoke it" in label for label in told[:2]] == [True, False]


async def test_R1_an_answer_to_a_card_of_the_server_before_is_for_what_asks_the_same_now() -> None:
    control = FakeControl()
    asked = next(each for each in control.open if each["kind"] == "question" and each["handle"])
    async with browser(control, NoScreens()) as http:
        fields = {"decision": "answer", "value": "true", "card": card_key(asked)}
        again = await http.post("/do/requests/n-99", data=fields)  # of this server: it has been answered
        assert "said=gone" in again.headers["location"] and asked in control.open
        before = await http.post("/do/requests/before-1", data=fields | {"card": "x-00000000"})
        assert "said=gone" in before.headers["location"] and asked in control.open
        before = await http.post("/do/requests/before-1", data=fields)
        assert "said=answered" in before.headers["location"]
