"""Random HTTP, right and wrong, with and without the token, at every path of `keephold serve` (K1, K4, K6).

Each request is answered or its connection is closed, no answer is an error of the server's, and the server lives. A
soak sends 100,000 requests and prints the slowest answer.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from tests.browser.workshop import CONFIG
from tests.patience import PATIENCE
from tests.serve.serving import TOKEN, Served, served
from tests.serve.test_schemathesis import furnished
from tests.soak import tries

REQUESTS = tries(600, soak=100_000)
AT_ONCE = 8
PAGES = [
    "/", "/handles", "/handles/{uid}", "/handles?state=live&search={text}", "/conversations", "/conversations/{id}",
    "/notifications", "/keys", "/permissions", "/stats", "/tools", "/sessions", "/login", "/static/live.js",
    "/static/../{text}", "/metrics", "/healthz", "/mcp", "/nothing/{text}",
]  # fmt: skip
METHODS = ("GET", "POST", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "get", "G@T", "")
TYPES = (
    "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "é", "",
)  # fmt: skip
TEXTS = (
    "", "a", "main", "%00", "%", "..%2f..", "%ff%fe", "é", "'\"<b>", "-1", "1e999", "9" * 400, "%F0%9F%99%82", "?",
    "#", "null",
)  # fmt: skip
SOUP = ("\0", "\n", "\r", "\r\n", " ", ":", "\x7f", "\xff", "GET / HTTP/1.1\r\n\r\n", "chunked", "9" * 30)
ATOMS: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 2**200, 1.5, "", "a", "\0", "\ud800", "é" * 300, [], {}, "sh", "\u202e",
)  # fmt: skip
WORDS = [
    "action", "id", "input", "keys", "size", "eof", "arguments", "answer", "approve", "reason", "seen", "question",
    "tool", "conversation", "jsonrpc", "method", "params", "name", "result", "error", "success", "data", "rows", "cols",
    "offset", "limit", "key", "token", "until", "since", "value", "deny", "allow", "remember",
]  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, CONFIG) as server:
        yield server


class Requests:
    """Random requests to a server."""

    def __init__(self, dice: random.Random, targets: list[tuple[str, str]], known: dict[str, list[str]]) -> None:
        self._dice = dice
        self._targets = targets
        self._known = known

    def draw(self) -> bytes:
        """Return the bytes of one request: most are well formed, some have a piece changed."""
        dice = self._dice
        method, target = dice.choice(self._targets)
        body = self._body()
        headers = {
            "Host": dice.choice(("localhost", "127.0.0.1", "127.0.0.1", "evil.example", "", "a b")),
            "Connection": "close",
            "Content-Type": "application/json" if dice.random() < 0.6 else dice.choice(TYPES),
            "Accept": dice.choice(("*/*", "text/html", "application/json, text/event-stream", "\xff")),
        }
        if dice.random() < 0.8:
            headers["Authorization"] = f"Bearer {TOKEN if dice.random() < 0.9 else dice.choice(TEXTS)}"
        if dice.random() < 0.2:
            names = (
                "Origin",
                "Cookie",
                "Range",
                "Last-Event-ID",
                "Mcp-Session-Id",
                "Accept-Encoding",
                "Content-Encoding",
            )
            headers[dice.choice((*names, "Mcp-Protocol-Version"))] = dice.choice(TEXTS)
        match dice.randrange(12):
            case 0:
                headers["Content-Length"] = dice.choice(("-1", "x", str(len(body) + 5), "9" * 25, "1, 1"))
            case 1:
                headers["Transfer-Encoding"] = "chunked"
                body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if dice.random() < 0.5 else body
            case _:
                headers["Content-Length"] = str(len(body))
        if dice.random() < 0.1:
            method = dice.choice(METHODS)
        lines = [f"{method} {self._filled(target)} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        request = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body
        if dice.random() < 0.1:
            at = dice.randrange(len(request))
            request = request[:at] + dice.choice(SOUP).encode("latin-1") + request[at + dice.randrange(20) :]
        return request

    def _filled(self, target: str) -> str:
        for name in ("uid", "id", "conversation", "key"):
            value = self._dice.choice(self._known[name] if self._dice.random() < 0.8 else TEXTS)
            target = target.replace(f"{{{name}}}", value)
        while "{" in target:
            before, _, rest = target.partition("{")
            target = before + self._dice.choice(TEXTS) + rest.partition("}")[2]
        if self._dice.random() < 0.2:
            target += f"?{self._dice.choice(WORDS)}={self._dice.choice(TEXTS)}"
        return target

    def _body(self) -> bytes:
        dice = self._dice
        match dice.randrange(10):
            case 0:
                return b""
            case 1:
                return dice.randbytes(dice.randrange(300))
            case 2:
                return b"[" * dice.choice((10, 2_000, 100_000))
            case 3:
                return "&".join(f"{dice.choice(WORDS)}={dice.choice(TEXTS)}" for _ in range(dice.randrange(5))).encode()
        text = json.dumps({dice.choice(WORDS): self._value(3) for _ in range(dice.randrange(6))})
        return text.encode()

    def _value(self, depth: int) -> Any:
        dice = self._dice
        match dice.randrange(6 if depth else 4):
            case 4:
                return {dice.choice(WORDS): self._value(depth - 1) for _ in range(dice.randrange(4))}
            case 5:
                return [self._value(depth - 1) for _ in range(dice.randrange(4))]
        return dice.choice(ATOMS)


async def answered(port: int, request: bytes) -> str:
    """Return the status line that a request gets; empty if the connection is closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        writer.write_eof()  # a request that says it is longer gets no more
        return (await reader.readline()).decode("latin-1").strip()
    except ConnectionError:
        return ""
    finally:
        writer.transport.abort()


@pytest.mark.timeout(60 + REQUESTS / 20)
async def test_K6_random_requests_are_answered_and_none_breaks_the_server(server: Served) -> None:
    known = await furnished(server)
    async with server.client() as http:
        paths = (await http.get("/api/openapi.json")).json()["paths"]
    named = [(method.upper(), path) for path, operations in paths.items() for method in operations]
    requests = Requests(random.Random(15), named + [("GET", page) for page in PAGES] + [("POST", "/mcp")], known)
    problems: list[str] = []
    slowest = 0.0

    async def send(count: int) -> None:
        nonlocal slowest
        for _ in range(count):
            request = requests.draw()
            began = perf_counter()
            async with asyncio.timeout(PATIENCE):
                status = await answered(server.port, request)
            slowest = max(slowest, perf_counter() - began)
            if status[9:10] == "5" and not status.startswith("HTTP/1.1 501"):  # a method that nobody knows
                problems.append(f"{status}: {request[:2000]!r}")

    await asyncio.gather(*(send(REQUESTS // AT_ONCE) for _ in range(AT_ONCE)))
    assert not problems, "\n".join(problems[:20])
    assert server.process.poll() is None
    assert "Traceback" not in server.said.read_text()
    print(f"{REQUESTS:,} requests; the slowest answer took {slowest * 1000:.0f} ms")
