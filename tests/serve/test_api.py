"""`/api`: every operation over HTTP, what is refused and how, and streams that begin, resume and end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from tests.durable.lives import approval, crash_looped, ok, stored_in
from tests.patience import PATIENCE, until
from tests.serve.application import Application, application
from tests.serve.streams import Event, events
from tests.turn.calls import TALKING, call, spawn

import keephold
from keephold import Call, KeepholdError, Key, Question
from keephold.serve import sse
from keephold.serve.api_operations import OPERATIONS
from keephold.serve.operations import shapes


@keephold.tool(actions=TALKING)
async def talk(call: Call) -> str:
    """Says again what it is told, until that is `bye`."""
    call.emit("hello\n")
    while (line := await call.input()) != "bye":
        call.emit(f"you said {line}\n")
    return "bye"


@keephold.tool(actions=TALKING)
async def asks(call: Call) -> str:
    return str(await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean")))


@keephold.tool(run="ask")
async def echo(text: str) -> str:
    return text


TOOLS = [talk, asks, echo]


@asynccontextmanager
async def working(tmp_path: Path, *more: Any) -> AsyncIterator[tuple[Application, httpx2.AsyncClient, str]]:
    """An application with a handle that talks, a client of it, and the handle's uid."""
    async with (
        application([*TOOLS, *more], stored_in(tmp_path)) as served,
        served.runtime.turn("main") as turn,
        served.client() as http,
    ):
        await turn.run([spawn("talk", "t")])
        yield served, http, (await served.runtime.handle("t", conversation="main")).uid


async def test_L1_every_operation_answers_in_the_shape_that_it_describes(tmp_path: Path) -> None:
    keys: list[Key] = []
    async with working(tmp_path, approval(keys)) as (served, http, uid):
        turn = next(iter(served.runtime.turns))
        await turn.run([spawn("approve", "a"), spawn("asks", "q")])
        batch = asyncio.create_task(turn.run([call("echo", text="hi")]))
        await until(lambda: len(served.needs) == 2 and bool(keys))
        asking = (await served.runtime.handle("q", conversation="main")).uid
        need = next(each["id"] for each in served.needs.listed() if each["kind"] == "permission")
        body: dict[str, Any] = {"decision": "approve", "remember": True}
        asked: dict[str, tuple[str, Any]] = {
            "handles": ("/api/handles?conversation=main&state=live&kind=tool&sort=oldest&oneshot=yes&limit=3", None),
            "handle": (f"/api/handles/{uid}", None),
            "output": (f"/api/handles/{uid}/output?offset=0&limit=100", None),
            "journal": (f"/api/handles/{uid}/journal", None),
            "timeline": (f"/api/handles/{uid}/timeline", None),
            "waiters": (f"/api/handles/{uid}/waiters", None),
            "apply": (f"/api/handles/{uid}/apply", {"input": "one"}),
            "answer": (f"/api/handles/{asking}/answer", {"answer": "yes", "question": "sure"}),
            "wait": ("/api/wait", {"all": [uid], "output": [{"id": uid, "pattern": "."}], "timeout": 0}),
            "requests": ("/api/requests", None),
            "request": (f"/api/requests/{need}", None),
            "decide": (f"/api/requests/{need}", body),
            "permissions": ("/api/permissions", None),
            "revoke_permission": ("/api/permissions/x/revoke", {}),
            "conversations": ("/api/conversations?limit=1", None),
            "conversation": ("/api/conversations/main", None),
            "calls": ("/api/calls?conversation=main", None),
            "transcript": ("/api/transcript?conversation=main", None),
            "forget": ("/api/forget", {"conversation": "main"}),
            "keys": ("/api/keys", None),
            "notifications": ("/api/notifications", None),
            "tools": ("/api/tools", None),
            "stats": ("/api/stats", None),
            "collect": ("/api/collect", {"dry_run": True}),
            "complete": ("/api/complete", {"key": str(keys[0]), "resolution": ok(1)}),
            "revoke": ("/api/keys/revoke", {"conversation": "main"}),
            "abort": (f"/api/handles/{uid}/abort", {}),
            "retry": (f"/api/handles/{await crash_looped(served.runtime, 'talk')}/retry", {}),
        }
        known = {each.id: each for each in OPERATIONS}
        plain = {each.id for each in OPERATIONS if each.returns is not None}
        assert plain - set(asked) <= {"workflow"}, "each is tried here"
        description = (await http.get("/api/openapi.json")).json()
        results, _ = shapes(OPERATIONS)
        for id, (path, given) in asked.items():
            if id not in known:
                continue
            answered = await (http.get(path) if given is None else http.post(path, json=given))
            assert answered.status_code == 200, (id, answered.text)
            schema = {"components": description["components"], **results[id]}
            jsonschema_rs.validate(schema, answered.json())
            assert answered.headers["cache-control"] == "no-store" and str(keys[0]) not in answered.text
        await batch
        # Each operation is in the description, with its path and its refusals
        described = {
            one["operationId"]: (path, one) for path, each in description["paths"].items() for one in each.values()
        }
        assert set(described) == set(known)
        jsonschema_rs.validator_for({"components": description["components"]})
        assert (await http.get(f"/api/handles/{uid}/workflow")).status_code == 400


WRONG: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/api", None, 404, "not_found"),
    ("GET", "/api/nothing/here", None, 404, "not_found"),
    ("POST", "/api/nothing", {}, 404, "not_found"),
    ("POST", "/api/handles", {}, 405, "not_allowed"),
    ("DELETE", "/api/handles/UID", None, 405, "not_allowed"),
    ("GET", "/api/handles/UID/abort", None, 405, "not_allowed"),
    ("PUT", "/api/openapi.json", None, 405, "not_allowed"),
    ("GET", "/api/handles/unknown", None, 404, "handle_not_found"),
    ("GET", "/api/handles/t", None, 404, "handle_not_found"),
    ("GET", "/api/handles/unknown/follow", None, 404, "handle_not_found"),
    ("GET", "/api/handles/unknown/output", None, 404, "handle_not_found"),
    ("GET", "/api/handles/unknown/timeline", None, 404, "handle_not_found"),
    ("GET", "/api/handles/unknown/journal", None, 404, "handle_not_found"),
    ("POST", "/api/handles/unknown/abort", {}, 404, "handle_not_found"),
    ("GET", "/api/handles?state=odd", None, 400, "invalid_arguments"),
    ("GET", "/api/handles?limit=0", None, 400, "invalid_arguments"),
    ("GET", "/api/handles?limit=201", None, 400, "invalid_arguments"),
    ("GET", "/api/handles?limit=ten", None, 400, "invalid_arguments"),
    ("GET", "/api/handles?limit=--1", None, 400, "invalid_arguments"),
    ("GET", "/api/handles?limit=²", None, 400, "invalid_arguments"),
    ("GET", f"/api/handles?limit={'9' * 5000}", None, 400, "invalid_arguments"),
    ("GET", "/api/handles?oneshot=perhaps", None, 400, "invalid_arguments"),
    ("GET", "/api/handles?limit=1&limit=2", None, 400, "invalid_arguments"),
    ("GET", "/api/handles?unknown=1", None, 400, "invalid_arguments"),
    ("GET", "/api/handles/UID?uid=other", None, 400, "invalid_arguments"),
    ("GET", "/api/calls", None, 400, "invalid_arguments"),
    ("GET", "/api/glances", None, 400, "invalid_arguments"),
    ("GET", "/api/events?after=-1", None, 400, "invalid_arguments"),
    ("GET", "/api/handles/UID/output?offset=-1", None, 400, "invalid_arguments"),
    ("GET", "/api/handles/UID/output?format=xml", None, 400, "invalid_arguments"),
    ("GET", "/api/conversations/nowhere", None, 404, "conversation_not_found"),
    ("POST", "/api/handles/UID/apply", {}, 400, "invalid_arguments"),
    ("POST", "/api/handles/UID/apply", {"input": 1, "more": 2}, 400, "invalid_arguments"),
    ("POST", "/api/handles/UID/apply", {"keys": "ENTER"}, 400, "invalid_arguments"),
    ("POST", "/api/handles/UID/apply", [], 400, "invalid_arguments"),
    ("POST", "/api/handles/UID/answer", {}, 400, "invalid_arguments"),
    ("POST", "/api/handles/UID/answer", {"answer": 1}, 409, "not_running"),
    ("POST", "/api/wait", {}, 400, "invalid_arguments"),
    ("POST", "/api/wait", {"all": ["unknown"]}, 404, "handle_not_found"),
    ("POST", "/api/wait", {"all": ["t"], "timeout": -1}, 400, "invalid_arguments"),
    ("POST", "/api/requests/x", {"decision": "perhaps"}, 400, "invalid_arguments"),
    ("POST", "/api/forget", {}, 400, "invalid_arguments"),
    ("POST", "/api/collect", {"older_than": "old"}, 400, "invalid_arguments"),
]


async def test_K6_what_is_wrong_is_refused_with_a_status_and_a_code(tmp_path: Path) -> None:
    async with working(tmp_path) as (served, http, uid):
        for method, path, body, status, code in WRONG:
            given = {} if body is None else {"json": body}
            answered = await http.request(method, path.replace("UID", uid), **given)
            assert answered.status_code == status, (method, path, answered.text)
            error = answered.json()["error"]
            assert error["code"] == code and error["message"], (method, path)
            if status == 405:
                assert answered.headers["allow"] in ("GET", "POST")
        for wrong in (b"{", b"\xff", b"[" * 100_000, b'{"input": "\\ud800"}', b"nonsense"):
            answered = await http.post(f"/api/handles/{uid}/apply", content=wrong)
            assert answered.status_code == 400, wrong
        much = b'{"input": "' + b"x" * served.runtime.limits.arguments_bytes + b'"}'
        answered = await http.post(f"/api/handles/{uid}/apply", content=much)
        assert (answered.status_code, answered.json()["error"]["code"]) == (413, "limit_exceeded")

        async def slowly() -> AsyncIterator[bytes]:
            for at in range(0, len(much), 1 << 16):
                yield much[at : at + (1 << 16)]

        answered = await http.post(f"/api/handles/{uid}/apply", content=slowly())
        assert answered.status_code == 413


async def test_C5_output_is_given_as_text_on_request(tmp_path: Path) -> None:
    async with working(tmp_path) as (_, http, uid):
        raw = await http.get(f"/api/handles/{uid}/output?format=raw&offset=1&limit=3")
        assert raw.text == "ell" and raw.headers["content-type"] == "text/plain; charset=utf-8"
        told = {name: raw.headers[f"x-{name}"] for name in ("offset", "next", "total", "missing")}
        assert told == {"offset": "1", "next": "4", "total": "6", "missing": "0"}
        found = await http.get(f"/api/handles/{uid}/output?pattern=llo&format=raw")
        assert found.json()["matches"] == [{"offset": 2, "line": "hello"}]


async def test_an_id_with_strange_letters_is_found(tmp_path: Path) -> None:
    async with application(TOOLS, stored_in(tmp_path)) as served, served.client() as http:
        name = "a/b c?d#é"
        async with served.runtime.turn(name) as turn:
            await turn.run([spawn("talk", "x")])
            found = await http.get("/api/handles", params={"conversation": name, "search": "x"})
            uid = found.json()["handles"][0]["uid"]
            by_id = await http.get("/api/handles/x", params={"conversation": name})
            assert by_id.json()["uid"] == uid
            quoted = httpx2.URL(f"{served.base}/api/conversations/").join("a%2Fb%20c%3Fd%23%C3%A9")
            assert (await http.get(quoted)).json()["id"] == name


async def test_R6_whoever_waits_is_answered_or_lets_go(tmp_path: Path) -> None:
    """A client that goes leaves nobody waiting for it."""
    async with working(tmp_path) as (served, http, uid):
        registry = served.runtime.registry
        waiting = asyncio.create_task(http.post("/api/wait", json={"all": [uid]}))
        await until(lambda: len(registry.waiting) == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: not registry.waiting)
        waiting = asyncio.create_task(http.post("/api/wait", json={"any": ["t"], "conversation": "main"}))
        await until(lambda: len(registry.waiting) == 1)
        await http.post(f"/api/handles/{uid}/apply", json={"input": "bye"})
        assert (await waiting).json()["completed"][0]["result"] == "bye"


# Streams


class Stream:
    """An open stream."""

    def __init__(self, answered: httpx2.Response) -> None:
        self.answered = answered
        self._events = events(answered)

    async def next(self, *types: str) -> Event:
        """The next event of one of these types; of any, if none is named."""
        async with asyncio.timeout(PATIENCE):
            while True:
                event = await anext(self._events)
                if not types or event.type in types:
                    return event

    async def rest(self) -> list[Event]:
        async with asyncio.timeout(PATIENCE):
            return [event async for event in self._events]


@asynccontextmanager
async def streaming(http: httpx2.AsyncClient, path: str, **headers: str) -> AsyncIterator[Stream]:
    async with http.stream("GET", path, headers=headers) as answered:
        assert answered.status_code == 200
        assert answered.headers["content-type"].startswith("text/event-stream")
        yield Stream(answered)


def streams(served: Application) -> int:
    return served.app.feed.listeners


async def test_L1_events_resume_where_a_stream_ended(tmp_path: Path) -> None:
    async with working(tmp_path) as (served, http, uid):
        async with streaming(http, "/api/events?after=0") as stream:
            first = [await stream.next() for _ in range(2)]
        assert [event.id for event in first] == [1, 2]
        assert first[1].data["seq"] == 2 and first[1].data["type"] == first[1].type
        await http.post(f"/api/handles/{uid}/apply", json={"input": "bye"})
        for path, headers in (
            ("/api/events?after=1", {}),
            ("/api/events", {"Last-Event-ID": "1"}),
            ("/api/events?after=2", {"Last-Event-ID": "1"}),
            ("/api/events?after=1", {"Last-Event-ID": "nonsense"}),
        ):
            async with streaming(http, path, **headers) as stream:
                assert (await stream.next()).id == 2, path
                assert (await stream.next("handle.stopped")).data["uid"] == uid
        await until(lambda: streams(served) == 0)


async def test_L1_without_a_number_a_stream_begins_now_and_filters(tmp_path: Path) -> None:
    async with working(tmp_path) as (served, http, uid):
        last = (await http.get("/api/stats")).json()["store"]["last_event"]
        async with (
            streaming(http, "/api/events") as whole,
            streaming(http, "/api/events?conversation=other") as other,
            streaming(http, f"/api/events?uid={uid}") as mine,
        ):
            await until(lambda: streams(served) == 3)
            async with served.runtime.turn("other") as turn:
                await turn.run([spawn("talk", "o")])
            await http.post(f"/api/handles/{uid}/abort", json={})
            assert (await whole.next()).id == last + 1
            assert (await other.next()).data["conversation"] == "other"
            event = await mine.next()
            assert (event.type, event.data["uid"]) == ("handle.stopped", uid)
        await until(lambda: streams(served) == 0)


@pytest.mark.parametrize("heard", ["999999", "9" * 30, "-5", "abc", "1.5"])
async def test_S5_a_stream_from_what_is_gone_or_was_never_there_begins_with_a_reset(tmp_path: Path, heard: str) -> None:
    future = {"Last-Event-ID": heard}
    async with working(tmp_path) as (_, http, uid), streaming(http, "/api/events", **future) as stream:
        event = await stream.next()
        last = (await http.get("/api/stats")).json()["store"]["last_event"]
        assert (event.type, event.data) == ("reset", {})
        await http.post(f"/api/handles/{uid}/apply", json={"input": "bye"})
        assert (await stream.next()).id == last + 1


async def test_what_needs_a_person_is_told_when_it_changes(tmp_path: Path) -> None:
    async with working(tmp_path) as (served, http, _uid), streaming(http, "/api/events") as stream:
        await until(lambda: streams(served) == 1)
        turn = next(iter(served.runtime.turns))
        batch = asyncio.create_task(turn.run([call("echo", text="hi")]))
        assert (await stream.next("requests")).data == {"open": 1}
        (need,) = (await http.get("/api/requests")).json()
        taken = await http.post(f"/api/requests/{need['id']}", json={"decision": "approve", "digest": None})
        assert taken.json() == {"status": "taken", "problem": None}
        while (told := (await stream.next("requests")).data) != {"open": 0}:
            assert told == {"open": 1}, "again: now the store has it, too"
        assert [response.result for response in await batch] == ["hi"]


async def test_a_sign_of_life_comes_while_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "BEAT_SECS", 0.02)
    async with working(tmp_path) as (_served, http, _uid), http.stream("GET", "/api/events") as answered:
        heard = b""
        async for piece in answered.aiter_raw():
            heard += piece
            if heard.count(b":\n\n") >= 3:
                break
        assert heard.startswith(b": keephold\nretry: 1000\n\n")


async def test_C5_a_handle_is_followed_to_its_end_and_resumed(tmp_path: Path) -> None:
    async with working(tmp_path) as (_served, http, uid):
        async with streaming(http, f"/api/handles/{uid}/follow") as stream:
            assert (await stream.next()).type == "state"
            said = await stream.next("output")
            assert (said.data["text"], said.id) == ("hello\n", 6)
            await http.post(f"/api/handles/{uid}/apply", json={"input": "one"})
            again = await stream.next("output")
        await http.post(f"/api/handles/{uid}/apply", json={"input": "bye"})
        assert again.data["text"] == "you said one\n"
        for path, headers in (("follow?offset=6", {}), ("follow", {"Last-Event-ID": "6"})):
            async with streaming(http, f"/api/handles/{uid}/{path}", **headers) as stream:
                rest = await stream.rest()
            assert "".join(event.data.get("text", "") for event in rest) == "you said one\n"
            assert rest[-1].type == "end" and rest[-1].data["handle"]["state"] == "stopped"


async def test_glances_tell_what_changes_of_those_that_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keephold.serve.api._GLANCE_SECS", 0.01)
    async with working(tmp_path) as (_served, http, uid), streaming(http, f"/api/glances?uids=x,{uid},{uid}") as stream:
        first = await stream.next()
        assert first.type == "glance" and (first.data["uid"], first.data["last_line"]) == (uid, "hello")
        await http.post(f"/api/handles/{uid}/apply", json={"input": "one"})
        while (await stream.next()).data["last_line"] != "you said one":
            pass


async def test_streams_are_counted_and_end_with_the_feed(tmp_path: Path) -> None:
    async with working(tmp_path) as (served, http, uid):
        paths = ("/api/events", f"/api/handles/{uid}/follow", f"/api/glances?uids={uid}")
        async with streaming(http, paths[0]) as one, streaming(http, paths[1]), streaming(http, paths[2]) as three:
            await until(lambda: served.metrics.snapshot()["streams"] == 3)
            served.app.feed.close()
            await one.rest()
            await three.rest()
        await until(lambda: served.metrics.snapshot()["streams"] == 0)


async def test_a_store_that_cannot_be_read_ends_a_stream_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(tmp_path) as (served, http, _uid):

        async def broken(*_: Any, **__: Any) -> Any:
            raise KeepholdError("the disk is away", code="store_unavailable")

        monkeypatch.setattr(served.runtime.registry.store, "events_range", broken)
        async with streaming(http, "/api/events?after=0") as stream:
            assert await stream.rest() == []
        answered = await http.get("/api/stats")
        assert (answered.status_code, answered.json()["error"]["code"]) == (503, "store_unavailable")
        monkeypatch.undo()


async def test_a_stream_that_is_only_asked_about_is_none(tmp_path: Path) -> None:
    async with working(tmp_path) as (served, http, uid):
        for path in ("/api/events", f"/api/handles/{uid}/follow", f"/api/glances?uids={uid}"):
            answered = await http.head(path)
            assert answered.status_code == 200 and answered.headers["content-type"].startswith("text/event-stream")
        assert (await http.get("/api/stats")).status_code == 200, "on the same connection"
        assert streams(served) == 0


def test_an_event_is_one_block_whatever_is_in_it() -> None:
    block = sse.event("output", {"text": "a\nb\r\n\ndata: x"}, 7)
    assert block == b'id: 7\nevent: output\ndata: {"text":"a\\nb\\r\\n\\ndata: x"}\n\n'
    assert json.loads(block.splitlines()[2].removeprefix(b"data: "))["text"] == "a\nb\r\n\ndata: x"
