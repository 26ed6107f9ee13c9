"""Frames over HTTP (`serve/attach_http.py`), asked of the application itself: what it says, and what it refuses."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette

import keephold
from keephold.control.control import Control
from keephold.errors import KeepholdError
from keephold.serve.attach_http import _pass_on, routes
from keephold.turn import attach_protocol as frames


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def echo(call: keephold.Call, text: str) -> str:
    """Prints it."""
    call.emit(text)
    return text


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    """The application, and the uid of a handle that has printed `hello` and stopped."""
    async with keephold.Runtime([echo], store=f"sqlite:///{directory}/work.db") as rt:
        async with rt.turn("main") as turn:
            given = {"action": "spawn", "id": "e", "text": "hello"}
            await turn.run([keephold.ToolCall("1", "echo", given)])
            await rt.wait(all=["e"], conversation="main")
        handle = await rt.handle("e", conversation="main")
        transport = httpx2.ASGITransport(Starlette(routes=routes(Control(rt))))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, handle.uid


def frames_of(body: bytes) -> list[tuple[str, bytes]]:
    found, place = [], 0
    while place < len(body):
        end = place + 5 + int.from_bytes(body[place + 1 : place + 5])
        found.append((chr(body[place]), body[place + 5 : end]))
        place = end
    return found


@pytest.mark.parametrize(("want", "since", "printed"), [("read", 0, b"hello"), ("follow", 3, b"lo"), ("read", 99, b"")])
async def test_C5_what_a_stopped_handle_printed_comes_in_the_frames_of_one_that_runs(
    tmp_path: Path, want: str, since: int, printed: bytes
) -> None:
    async with served(tmp_path) as (client, uid):
        said = await client.post(f"/api/handles/{uid}/talk", json={"want": want, "since": since})
        assert said.status_code == 200 and ("keephold-talk" in said.headers) == (want == "follow")
        first, *output, last = frames_of(said.content)
        assert first[0] == frames.STATE and last[0] == frames.END
        assert b"".join(data for kind, data in output if kind == frames.OUTPUT) == printed
        told = msgspec.json.decode(last[1], type=frames.HandleStatus)
        assert (told.handle.uid, told.handle.state, told.handle.ok) == (uid, "stopped", True)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"want": "attach", "rows": 24, "cols": 80}, 409, "not_running"),
        ({"want": "send", "input": "x"}, 409, "not_running"),
        ({"want": "follow", "screen": True}, 409, "not_running"),
        ({"want": "cast"}, 400, "invalid_arguments"),
        ({"want": "dance"}, 400, "invalid_arguments"),
        ({}, 400, "invalid_arguments"),
        ([], 400, "invalid_arguments"),
    ],
)
async def test_what_cannot_be_had_is_refused_before_anything_is_said(
    tmp_path: Path, body: Any, status: int, code: str
) -> None:
    async with served(tmp_path) as (client, uid):
        said = await client.post(f"/api/handles/{uid}/talk", json=body)
        assert (said.status_code, said.json()["error"]["code"]) == (status, code)


async def test_K6_what_is_no_talk_or_no_frame_or_too_much_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, uid):
        for path, content, status in (
            ("/api/handles/nobody/talk", b'{"want":"read"}', 404),
            (f"/api/handles/{uid}/talk", b"{", 400),
            (f"/api/handles/{uid}/talk", json.dumps({"want": "send", "input": "x" * (2 << 20)}).encode(), 413),
            ("/api/talks/nobody", frames.frame(frames.INPUT, b"x"), 404),
        ):
            said = await client.post(path, content=content)
            assert said.status_code == status and said.json()["error"]["message"], path


class Heard:
    """The other end of a talk."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, Any]] = []

    async def receive(self) -> tuple[str, bytes]:
        raise AssertionError

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        self.frames.append((kind, payload))


TYPED, RESIZED = (
    frames.frame(frames.INPUT, b"ls\r"),
    frames.frame(frames.RESIZE, frames.Size(24, 80)),
)


def test_what_a_client_sends_is_passed_on_in_its_order() -> None:
    heard = Heard()
    _pass_on(heard, TYPED + RESIZED + TYPED)
    _pass_on(heard, b"")
    assert heard.frames == [("i", b"ls\r"), ("r", frames.Size(24, 80)), ("i", b"ls\r")]


@pytest.mark.parametrize(
    "body",
    [
        TYPED[:-1],
        TYPED[:3],
        TYPED + b"i",
        TYPED + frames.frame(frames.WANT, b"{}"),
        TYPED + frames.frame(frames.END, b""),
        TYPED + frames.frame(frames.RESIZE, b"[]"),
        TYPED + frames.frame(frames.RESIZE, b'{"rows": "a", "cols": 1}'),
        b"\xff" * 50,
    ],
)
def test_of_what_is_no_frame_nothing_is_passed_on(body: bytes) -> None:
    heard = Heard()
    with pytest.raises(KeepholdError) as refused:
        _pass_on(heard, body)
    assert refused.value.code == "invalid_arguments"
    assert heard.frames == []
