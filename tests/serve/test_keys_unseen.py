"""No key is to be seen (K5, D3): keys are made every way there is, written wherever tools and models write, and then
every page and every answer of the API is searched for them."""

import asyncio
import base64
import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.durable.lives import power_cut
from tests.patience import until
from tests.serve.application import application
from tests.turn.calls import STATEFUL

import keephold
from keephold import Call, Pending, Runtime, ToolCall, Turn
from keephold.control.safe_text import Keyless, Plain
from keephold.durable.keys import masked_part
from keephold.store.ops import Described, Inquired, TranscriptAppended

EXCLUSIVE = keephold.policies.QuestionPolicy(exclusive=True)


class Made:
    """The keys that there are, and tools that make and tell them."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def tools(self) -> list[keephold.Tool]:
        def kept(key: str) -> str:
            self.keys.append(str(key))
            return str(key)

        @keephold.tool(actions=STATEFUL, run="unattended")
        async def mail(call: Call) -> Pending:
            """Prints its key, tells it as progress, and waits to be completed."""
            key = kept(await call.completion_key())
            call.emit(f"open http://localhost/complete/{key}\nand {key[:40]}")
            call.progress(1, 2, f"mailed {key}")
            call.emit(f"{key[40:]} again\nlast {key}")
            return Pending()

        @keephold.tool(actions=STATEFUL, run="unattended", on_crash="replay", questions={"came": EXCLUSIVE})
        async def order(call: Call) -> str:
            """Gives the key of an event to a step, which tells it, and to a person."""
            fx = call.durable()
            key = await fx.external_event_key("paid")

            async def send(given: Any) -> Any:
                return {"sent": [given["key"], kept(given["key"])]}

            await fx.run_json("send", {"to": "ann", "key": key}, send)
            await call.ask(keephold.Question(id="came", text=f"Did {key} arrive?", pre_amble=f"It is {key}"))
            return "never"

        @keephold.tool(actions=STATEFUL, run="unattended", name="fail")
        async def failing(call: Call) -> str:
            raise keephold.ToolError(f"{kept(await call.completion_key())} was refused")

        @keephold.tool(run="unattended")
        async def tell(call: Call) -> dict[str, str]:
            return {"key": self.keys[0]}

        @keephold.tool(run="ask")
        async def note(text: str) -> str:
            """Needs a permission."""
            return text

        return [mail, order, failing, tell, note]


def call(number: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"call-{number}", name=name, arguments=arguments)


async def work(rt: Runtime, turn: Turn, made: Made) -> None:
    """Everything that makes keys, and everything that may be told of one."""
    await turn.run([call(n, name, action="spawn", id=name) for n, name in enumerate(("mail", "order", "fail"))])
    await until(lambda: len(made.keys) == 3)
    (created,) = await turn.run([call(4, "create_wait_handle", handleId="hook", type="hook")])
    (hook,) = set(re.findall(r"hf1\.[\w.-]+", created.result))
    (other,) = await turn.run([call(5, "create_wait_handle", handleId="done", type="hook")])
    (done,) = set(re.findall(r"hf1\.[\w.-]+", other.result))
    made.keys += [hook, done]
    await turn.run([call(6, "complete_wait_handle", handleId=done, result={"again": hook}), call(7, "tell")])
    body = {"parts": [{"part_kind": "tool-return", "tool_name": "create_wait_handle", "content": created.result}]}
    said = TranscriptAppended("main", "t1", time.time(), (("request", msgspec.json.encode(body)),))
    asked = Inquired("i1", "main", "t1", None, time.time(), {"what": hook}, {"said": f"<{hook}>"})
    await rt.registry.write((said, asked, Described("main", time.time(), {"title": f"About {hook}"})), keep=False)


async def every_answer(client: httpx2.AsyncClient) -> dict[str, str]:
    """By its path: every page, and whatever may be had of the API."""
    handles = (await client.get("/api/handles", params={"oneshot": "true", "limit": 200})).json()["handles"]
    uids = [handle["uid"] for handle in handles]
    described = (await client.get("/api/openapi.json")).json()["paths"]
    paths = [
        "/",
        "/handles?oneshot=1",
        "/conversations",
        "/conversations/main",
        "/notifications",
        "/keys",
        "/permissions",
        "/stats",
    ]
    paths += ["/tools", "/metrics", "/api/openapi.json", "/api/handles?oneshot=true", "/api/conversations/main"]
    paths += [f"/handles/{uid}{asked}" for uid in uids for asked in ("", "?offset=0", "?pattern=hf1.", "?pattern=a")]
    for path, methods in described.items():
        if "get" in methods and not path.endswith(("/requests/{id}", "/follow", "/events", "/glances", "/workflow")):
            named = [path.replace("{uid}", uid) for uid in uids] if "{uid}" in path else [path]
            takes = [each["name"] for each in methods["get"].get("parameters", ())]
            asked = "?conversation=main" if "conversation" in takes else ""
            paths += [each.replace("{id}", "main") + asked for each in named]
    for uid in uids:
        base = f"/api/handles/{uid}/output"
        paths += [f"{base}?{asked}" for asked in ("pattern=hf1.", "format=raw", "offset=60", "limit=60", "from_end=30")]
    found = {}
    for path in dict.fromkeys(paths):
        response = await client.get(path, headers={"accept": "text/html"})
        assert response.status_code == 200, f"{path}: {response.text[:200]}"
        found[path] = response.text
    for uid in uids:
        found[f"follow {uid}"] = await _streamed(client, f"/api/handles/{uid}/follow", "last")
    found["glances"] = await _streamed(client, f"/api/glances?uids={','.join(uids)}", "order")
    found["events"] = await _streamed(client, "/api/events?after=0", "handle.stopped")
    return found


async def _streamed(client: httpx2.AsyncClient, path: str, last: str) -> str:
    """A stream, until it ends, says that, or nothing."""
    text = ""
    with suppress(asyncio.TimeoutError):
        async with asyncio.timeout(0.5), client.stream("GET", path) as response:
            async for piece in response.aiter_text():
                text += piece
                if last in text:
                    break
    return text


async def test_K5_no_key_is_on_any_page_or_in_any_answer_of_the_API(tmp_path: Path) -> None:
    made = Made()
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    async with application(made.tools(), store=store) as app, app.client() as client, app.runtime.turn("main") as turn:
        await work(app.runtime, turn, made)
        asking = asyncio.create_task(turn.run([call(8, "note", text=f"keep {made.keys[1]}")]))
        await until(lambda: len(app.needs) == 2)
        found = await every_answer(client)
        for path, text in found.items():
            for key in made.keys:
                signature = key.rpartition(".")[2]
                assert key not in text and signature not in text, f"{path} shows a key"
        everything = "".join(found.values())
        for key in made.keys:
            (wait,) = [row for row in await app.runtime.registry.store.waits(_uid(key)) if row.revoked is False]
            assert f"key:{wait.key_id}" in everything  # it was there to be seen
        for path in ("/api/requests", "/api/transcript?conversation=main", "/conversations/main", "glances", "events"):
            assert "key:" in found[path], path
        (need,) = [each for each in await app.control.requests.page() if each["kind"] == "permission"]
        edited = {"text": need["arguments"]["text"].replace("keep", "hold")}
        await app.control.decide(need["id"], {"decision": "edit", "value": edited})
        (response,) = await asking
        assert response.result == f"hold {made.keys[1]}"  # a person edits what they see, the tool gets its key


def _uid(key: str) -> str:
    payload = key.split(".")[2]
    return str(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))[1])


async def test_K5_the_input_of_a_step_is_written_without_its_key_and_replayed_by_what_it_was(tmp_path: Path) -> None:
    made, url = Made(), f"sqlite:///{tmp_path / 'steps.db'}"
    async with application(made.tools(), store=url) as app, app.runtime.turn("main") as turn:
        await turn.run([call(1, "order", action="spawn", id="order")])
        await until(lambda: len(app.needs) == 1)
        store = app.runtime.registry.store
        (step,) = [entry for entry in await store.journal(_uid(made.keys[0])) if entry.name == "send"]
        assert made.keys[0].encode() not in step.input and b'"ann"' in step.input and b"key:" in step.input
        assert made.keys[0].encode() in step.value  # what it gave is what a replay gives again
        cut = power_cut(url)
    async with application(made.tools(), store=cut) as app:
        await until(lambda: len(app.needs) == 1)  # it has gone on behind the step, whose input is the same
        assert len(made.keys) == 1


KEY = "hf1.0123abcd.WyJtYWluIiwidTEiLCJjb21wbGV0aW9uIl0." + "s" * 43


@pytest.mark.parametrize("place", range(len(f"a {KEY} b") + 1))
def test_K5_a_key_that_is_cut_in_two_is_a_key(place: int) -> None:
    text = f"a {KEY} b"
    before, after = text[:place], text[place:]
    shown = masked_part("", before, after) + masked_part(before, after, "")
    assert "ssssss" not in shown and "WyJtY" not in shown and shown.startswith("a ") and shown.endswith(" b")
    stream = Keyless(Plain())
    first = stream.feed(before.encode())
    assert stream.held == 0 or 2 <= place < 2 + len(KEY)
    told = (first + stream.feed(after.encode()) + stream.end()).decode()
    assert told == masked_part("", text, "") and told.count("key:") == 1


@pytest.mark.parametrize("text", ["", "push", "hf1.", "half1.5", "hf1.00000000.", "no h", "x hf1.zz.yy.xx"])
def test_K5_what_is_no_key_stays_as_it_is(text: str) -> None:
    stream = Keyless(Plain())
    assert stream.feed(text.encode()) + stream.end() == text.encode()
    assert masked_part("", text, "") == text
