"""The page of a conversation: its turns over time, what was said, the agents below it."""

import asyncio
import json
from typing import Any

from tests.serve.pages import dashboard
from tests.turn.calls import STATEFUL, replies, spawn, wait_all

import keephold
from keephold import Call
from keephold.serve.dashboard.conversation import messages
from keephold.store.base import TranscriptAppended


@keephold.tool(actions=STATEFUL)
async def build(call: Call, name: str) -> str:
    return name


def line(kind: str, body: Any, number: int = 1) -> dict[str, Any]:
    return {"line": number, "turn": "t", "kind": kind, "at": 1.0, "body": body}


async def test_a_turn_is_drawn_with_its_calls_and_told_in_a_table() -> None:
    async with dashboard([build]) as seen:
        await replies(seen.turn, spawn("build", "left<b>", name="l"), spawn("build", "right", name="r"))
        await replies(seen.turn, wait_all("left<b>", "right"))
        page = await seen.page("/conversations/main")
        lanes = [each for each in page.all("a") if each.attributes.get("class", "").startswith("lane ")]
        assert len(lanes) == 3 and "lane-wait" in lanes[2].attributes["class"]
        assert "waits for left<b>, right" in lanes[2].attributes["aria-label"]
        assert len([each for each in page.all("path") if each.attributes.get("class") == "blocked"]) == 2
        (table,) = page.all("table", aria_label="Calls")
        assert all(id in table.text for id in ("left<b>", "right", "await"))
        links = {each.attributes["href"] for each in lanes}
        assert all([(await seen.http.get(link)).status_code == 200 for link in links])


async def test_what_was_said_is_shown_a_page_at_a_time_from_the_end() -> None:
    async with dashboard() as seen:
        said = tuple(
            ("request", json.dumps({"parts": [{"part_kind": "user-prompt", "content": f"<b>word {n}</b>"}]}).encode())
            for n in range(150)
        )
        await seen.runtime.registry.write((TranscriptAppended("talk", "t", 1.0, said),))
        page = await seen.page("/conversations/talk")
        texts = page.texts("p", class_="message-text")
        assert texts[-1] == "<b>word 149</b>" and len(texts) == 60
        assert not page.all("p", class_="flash")  # nothing was sent, so nothing is reported
        (earlier,) = [each.attributes["href"] for each in page.all("a") if each.text == "Earlier"]
        assert (await seen.page(earlier)).texts("p", class_="message-text")[-1] == "<b>word 89</b>"


async def test_a_call_in_the_transcript_is_shown_in_one_line_before_it_is_unfolded() -> None:
    async with dashboard() as seen:
        parts = [{"part_kind": "tool-call", "tool_name": "build", "args": {"target": "web", "jobs": 4}}]
        said = (("response", json.dumps({"parts": parts}).encode()),)
        await seen.runtime.registry.write((TranscriptAppended("talk", "t", 1.0, said),))
        page = await seen.page("/conversations/talk")
        assert page.texts("summary", class_="mono") == ['{"target": "web", "jobs": 4}']


async def test_an_await_that_only_this_process_knows_is_drawn_while_it_waits() -> None:
    go = asyncio.Event()

    @keephold.tool(actions=STATEFUL)
    async def held() -> str:
        await go.wait()
        return "through"

    async with dashboard([held]) as seen:
        queue = seen.runtime.call_queue("client")
        await queue.call(spawn("held", "h"))
        waiting = asyncio.ensure_future(queue.call(wait_all("h")))
        uid = (await seen.runtime.handle("h", conversation="client")).uid
        while not (waiters := await seen.control.runtime_view.waiters(uid)):  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)
        page = await seen.page("/conversations/client")
        drawn = [each for each in page.all("a") if "lane-wait" in each.attributes.get("class", "")]
        assert [each.attributes["href"] for each in drawn] == [f"/handles/{waiters[0]['uid']}"]
        answer = await seen.http.get(f"/handles/{waiters[0]['uid']}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/conversations/client")
        go.set()
        await waiting


async def test_the_conversations_of_sub_agents_are_linked_from_their_callers() -> None:
    async with dashboard() as seen:
        below = f"main/reviewer@{'0' * 32}"
        for place in ("main", below, f"{below}/helper@{'1' * 32}", "main-2"):
            await seen.runtime.registry.write(
                (TranscriptAppended(place, "t", 1.0, (("summary", b'{"upto":0,"text":"x"}'),)),)
            )
        page = await seen.page("/conversations/main")
        agents = page.all("section", aria_labelledby="below-title")
        assert [each.attributes["title"] for each in agents[0].inside if each.tag == "a"] == [below]
        page = await seen.page(f"/conversations/{below}")
        assert page.texts("h1") == ["main › reviewer"]
        assert [each.text for each in page.all("a", title="main")] == ["main"]


def test_lines_are_told_by_who_said_what() -> None:
    found = messages([
        line("request", {"parts": [{"part_kind": "user-prompt", "content": ["look", {"kind": "image"}]}]}),
        line("response", {"parts": [{"part_kind": "text", "content": "I look"},
                                    {"part_kind": "tool-call", "tool_name": "see", "args": {"at": 1}}]}),
        line("request", {"parts": [{"part_kind": "tool-return", "tool_name": "see", "content": {"seen": True}}]}),
        line("ended", {"stop_reason": "error", "error": "no money"}),
        line("odd", [1]),
    ])  # fmt: skip
    assert [(each.who, each.title, each.content) for each in found] == [
        ("user", "User", "look\n[…]"),
        ("assistant", "Model", "I look"),
        ("call", "see", {"at": 1}),
        ("result", "see", {"seen": True}),
        ("note", "The turn ended: error", "no money"),
        ("note", "odd", [1]),
    ]
    assert [each.long for each in found] == [False, False, True, True, False, True]
