"""The wire: order, ids, answers, and that nothing which arrives ends the connection."""

import asyncio
import json
from typing import Any

import pytest
from tests.acp.wires import Heard, bare, pair

from keephold.acp.wire import ConnectionLost, Id, Params, Peer, RpcError, unknown_method


async def test_messages_arrive_in_the_order_of_the_calls() -> None:
    heard = Heard()
    async with pair(heard) as (first, second):
        for number in range(500):
            first.notify("n", {"number": number})
            call = first.request("r", {"number": number})
        call.cancel()
        await heard.until(1001)
        assert [(kind, params["number"]) for kind, _, params, _ in heard.messages[:1000]] == [
            (kind, number) for number in range(500) for kind in ("notification", "request")
        ]
        assert heard.messages[1000][1:3] == ("$/cancel_request", {"requestId": call.id})
        await second.close()


async def test_requests_are_answered_in_any_order() -> None:
    heard = Heard()
    async with pair(heard) as (first, second):
        calls = [first.request("double", {"n": n}) for n in range(10)]
        await heard.until(10)
        for _, _, params, id in reversed(heard.messages):
            second.respond(id, params["n"] * 2)
        assert await asyncio.gather(*calls) == [n * 2 for n in range(10)]


async def test_an_answer_is_told_of_in_its_place_among_notifications() -> None:
    """An await wakes too late for that: what came behind the answer may have been told by then."""
    order: list[str] = []
    async with bare(on_notification=lambda method, params: order.append(method)) as (peer, other):
        call = peer.request("ask", {}, answered=lambda call: order.append("answer"))
        assert (await other.receive())["id"] == call.id
        other.send(
            {"jsonrpc": "2.0", "method": "before"},
            {"jsonrpc": "2.0", "id": call.id, "result": 1},
            {"jsonrpc": "2.0", "method": "behind"},
        )
        assert await call == 1
        assert order == ["before", "answer", "behind"]


@pytest.mark.parametrize("id", ["a", 7, "7", None, -1])
async def test_ids_are_echoed_as_they_came(id: Id) -> None:
    peers: list[Peer] = []
    async with bare(on_request=lambda method, params, id: peers[0].respond(id, params)) as (peer, other):
        peers.append(peer)
        other.send({"jsonrpc": "2.0", "id": id, "method": "echo", "params": {"x": 1}})
        assert await other.receive() == {"jsonrpc": "2.0", "id": id, "result": {"x": 1}}


NONSENSE: list[tuple[Any, int, Id]] = [
    (b"hello", -32700, None),
    (b"{", -32700, None),
    (b"\xff\xfe", -32700, None),
    (b"[" * 100_000, -32700, None),
    (b'{"jsonrpc":"2.0","id":5,"method":"m","params":{"a":NaN}}', -32700, 5),
    (b'{"jsonrpc":"2.0","id":"five","method":"m","params":', -32700, "five"),
    ([{"jsonrpc": "2.0", "id": 1, "method": "m"}], -32600, None),
    ([], -32600, None),
    ("text", -32600, None),
    (None, -32600, None),
    ({}, -32600, None),
    ({"id": 3}, -32600, 3),
    ({"id": 3, "method": "m"}, -32600, 3),
    ({"jsonrpc": "1.0", "id": 3, "method": "m"}, -32600, 3),
    ({"jsonrpc": "2.0", "id": 3, "method": 4}, -32600, 3),
    ({"jsonrpc": "2.0", "id": [3], "method": "m"}, -32600, None),
    ({"jsonrpc": "2.0", "id": True, "method": "m"}, -32600, None),
    ({"jsonrpc": "2.0", "id": 3, "method": "m", "params": [1]}, -32602, 3),
    ({"jsonrpc": "2.0", "id": 3, "method": "m", "params": "x"}, -32602, 3),
    (b'{"jsonrpc":"2.0","id":9,"method":"m","params":{"x":"' + b"y" * 5000 + b'"}}', -32600, 9),
    (b"z" * 5000, -32600, None),
]


@pytest.mark.parametrize(("line", "number", "id"), NONSENSE)
async def test_nonsense_is_answered_and_the_connection_lives(line: Any, number: int, id: Id) -> None:
    heard = Heard()
    limit = 200_000 if isinstance(line, bytes) and line.startswith(b"[") else 4096
    async with bare(heard, limit=limit) as (_, other):
        other.send(line, {"jsonrpc": "2.0", "id": "next", "method": "m"})
        answer = await other.receive()
        assert (answer["error"]["code"], answer["id"]) == (number, id)
        await heard.until(1)
        assert heard.messages == [("request", "m", {}, "next")]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
        b'{"jsonrpc":"2.0","id":99,"result":1}',
        b'{"jsonrpc":"2.0","id":[1],"result":1}',
        b'{"jsonrpc":"2.0","method":"m","params":[1]}',
        b'{"jsonrpc":"2.0","id":99,"result":',
    ],
)
async def test_what_needs_no_answer_gets_none(line: bytes) -> None:
    """Above all an error: two peers would send each other errors for ever."""
    async with bare(on_request=None) as (_, other):
        other.send(line, {"jsonrpc": "2.0", "id": 1, "method": "m"})
        assert (await other.receive())["id"] == 1


async def test_a_line_of_100_MB_is_passed_by_and_not_kept() -> None:
    async with bare(on_request=None) as (_, other):
        piece = b"x" * 1_000_000
        for _ in range(100):
            await asyncio.get_running_loop().sock_sendall(other.socket, piece)
        other.send(b"", {"jsonrpc": "2.0", "id": 1, "method": "m"})
        assert (await other.receive())["error"]["code"] == -32600
        assert (await other.receive())["id"] == 1


@pytest.mark.parametrize("end", [b'"' + b"x" * 5000 + b'"}', b"nonsense"])
async def test_an_answer_that_cannot_be_read_fails_its_request(end: bytes) -> None:
    async with bare(limit=4096) as (peer, other):
        call = peer.request("m", {})
        id = (await other.receive())["id"]
        other.send(b'{"jsonrpc": "2.0", "id": %d, "result": ' % id + end)
        with pytest.raises(RpcError, match=r"longer than 4096|Parse error"):
            await call


async def test_half_a_surrogate_pair_costs_a_character_and_no_more() -> None:
    heard = Heard()
    async with bare(heard) as (peer, other):
        other.send(b'{"jsonrpc":"2.0","method":"m","params":{"text":"a\\ud83d"}}')
        await heard.until(1)
        (_, _, params, _) = heard.messages[0]
        assert params["text"].startswith("a") and params["text"].encode()
        peer.notify("back", {"text": "b\udc00"})
        assert (await other.receive())["params"]["text"].startswith("b")


async def test_errors_of_the_other_side_are_raised_with_their_number_and_data() -> None:
    def refuse(method: str, params: Params, id: Id) -> None:
        if method == "known":
            raise RpcError(-32001, "not now", {"why": "busy"})
        if method == "broken":
            raise KeyError("oops")
        raise unknown_method(method)

    async with pair(Heard(), on_request=refuse) as (first, _):
        with pytest.raises(RpcError, match="not now") as caught:
            await first.request("known", {})
        assert (caught.value.number, caught.value.data) == (-32001, {"why": "busy"})
        with pytest.raises(RpcError, match="Method not found: other") as caught:
            await first.request("other", {})
        assert caught.value.number == -32601
        with pytest.raises(RpcError, match="KeyError") as caught:
            await first.request("broken", {})
        assert caught.value.number == -32603


async def test_a_notification_whose_handling_fails_does_not_stop_the_next() -> None:
    heard = Heard()

    def fail(method: str, params: Params) -> None:
        heard.notification(method, params)
        raise RuntimeError("no")

    async with pair(heard, on_notification=fail) as (first, _):
        first.notify("a", {})
        first.notify("b", {})
        await heard.until(2)


async def test_answer_runs_a_task_and_cancel_ends_it() -> None:
    peers: list[Peer] = []
    began = asyncio.Event()

    async def work(params: Params) -> Any:
        if "forever" in params:
            began.set()
            await asyncio.Event().wait()
        if "fail" in params:
            raise ValueError("no")
        return object() if "strange" in params else params

    async with pair(Heard(), on_request=lambda _, params, id: peers[0].answer(id, work(params))) as (first, second):
        peers.append(second)
        assert await first.request("work", {"x": 1}) == {"x": 1}
        with pytest.raises(RpcError, match="ValueError: no"):
            await first.request("work", {"fail": 1})
        with pytest.raises(RpcError, match="Internal error"):
            await first.request("work", {"strange": 1})
        call = first.request("work", {"forever": 1})
        await began.wait()
        assert second.cancel(call.id)
        with pytest.raises(RpcError) as caught:
            await call
        assert caught.value.number == -32800
        assert not second.cancel(call.id)


async def test_a_task_that_is_cancelled_before_it_begins_is_answered_too() -> None:
    async with bare() as (peer, other):

        async def never() -> None:
            raise AssertionError("it ran")

        peer.answer("x", never())
        assert peer.cancel("x")
        assert (await other.receive())["error"]["code"] == -32800


async def test_close_ends_what_is_open() -> None:
    async with bare() as (peer, other):
        peer.answer(1, asyncio.Event().wait())
        call = peer.request("m", {})
        await asyncio.sleep(0)
        await peer.close()
        with pytest.raises(ConnectionLost, match="was closed"):
            await call
        assert [(await other.receive())["id"] for _ in range(2)] == [call.id, 1]
        with pytest.raises(ConnectionLost, match="m was not sent"):
            await peer.request("m", {})
        peer.notify("n", {})  # nobody is there to be told, and that is no error
        await peer.drain()


async def test_the_end_of_the_other_side_fails_requests_at_once() -> None:
    async with bare() as (peer, other):
        call = peer.request("m", {})
        await other.receive()
        other.socket.close()
        with pytest.raises(ConnectionLost, match="has closed the connection"):
            await call
        assert "has closed" in await peer.ended()


async def test_what_was_said_before_the_end_is_taken_also_when_writing_fails_first() -> None:
    heard = Heard()
    async with bare(heard) as (peer, other):
        call = peer.request("m", {})
        await other.receive()
        other.send({"jsonrpc": "2.0", "method": "last"}, {"jsonrpc": "2.0", "id": call.id, "result": "words"})
        other.socket.close()
        peer.notify("n", {})  # fails: the loop has not seen yet what there is to read
        with pytest.raises(ConnectionLost, match="reads no more"):
            await peer.request("late", {})
        assert await call == "words"
        assert [method for _, method, _, _ in heard.messages] == ["last"]


async def test_a_last_line_needs_no_end() -> None:
    heard = Heard()
    async with bare(heard) as (peer, other):
        other.socket.sendall(json.dumps({"jsonrpc": "2.0", "method": "last"}).encode())
        other.socket.close()
        await peer.ended()
        assert [method for _, method, _, _ in heard.messages] == ["last"]
