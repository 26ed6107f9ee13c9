"""`api` (W10): a real request to a real server, with its limits."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest
from tests.unit.workflow import world
from tests.unit.workflow.world import cel, step, workflow

from keephold import ToolError
from keephold.tools.workflow import WorkflowFailed
from keephold.tools.workflow.http import Http, shown
from keephold.tools.workflow.pinned import is_public


async def anyone(host: str, request: dict[str, Any], name: str) -> None:
    """Permits every host."""


async def run(given: dict[str, Any]) -> dict[str, Any]:
    return await world.run(given, http=Http(private=True, permit=anyone))


async def failed(given: dict[str, Any], *, private: bool = True) -> WorkflowFailed:
    return await world.failed(given, http=Http(private=private, permit=anyone))


Answer = Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], bytes]]


@asynccontextmanager
async def server(
    answer: Answer, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The least of a server: one answer a connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        status, said, made = answer(method, path, headers, body)
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in said.items())]
        lines += [f"content-length: {len(made)}", "connection: close", "", ""]
        writer.write("\r\n".join(lines).encode() + made)
        with contextless():
            await writer.drain()
        writer.close()
        with contextless():
            await writer.wait_closed()

    listening = await asyncio.start_server(serve, host, port, ssl=tls)
    try:
        yield f"http://{host}:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        await listening.wait_closed()


class contextless:  # noqa: N801
    """A client may go before it has read all."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, _: object) -> bool:
        return isinstance(error, ConnectionError)


def api(url: Any, **config: Any) -> dict[str, Any]:
    return step("a", "api", {"url": url, **config})


def echo(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    told = {"method": method, "path": path, "key": headers.get("x-key"), "type": headers.get("content-type")}
    return 200, {"content-type": "application/json"}, json.dumps({**told, "body": body.decode()}).encode()


async def test_W10_a_request_and_its_answer() -> None:
    async with server(echo) as url:
        given = api(url + "/x?y=1", method="POST", headers={"X-Key": cel("input.key")}, body={"n": [cel("input.n")]})
        made = (await run(workflow(given, input={"key": "k", "n": 7})))["finalOutput"]
        assert made["status"] == 200 and made["headers"]["content-type"] == "application/json"
        assert made["body"] == {
            "method": "POST",
            "path": "/x?y=1",
            "key": "k",
            "type": "application/json",
            "body": '{"n":[7]}',
        }
        plain = (await run(workflow(api(cel(f"'{url}' + '/z'"), method="PUT", body="as it is"))))["finalOutput"]["body"]
        assert (plain["path"], plain["body"], plain["type"]) == ("/z", "as it is", None)


async def test_W10_what_is_not_json_is_text() -> None:
    async with server(lambda *_: (200, {"content-type": "text/plain; charset=latin-1"}, b"h\xe9")) as url:
        assert (await run(workflow(api(url))))["finalOutput"]["body"] == "hé"
    async with server(lambda *_: (200, {"content-type": "application/json"}, b"{")) as url:
        assert "answers with what is not JSON" in (await failed(workflow(api(url)))).message
    async with server(lambda *_: (204, {"content-type": "application/json"}, b"")) as url:
        assert (await run(workflow(api(url))))["finalOutput"]["body"] == ""


@pytest.mark.parametrize(("status", "transient"), [(400, False), (404, False), (429, True), (500, True), (503, True)])
async def test_W10_an_answer_above_399_is_an_error(status: int, transient: bool) -> None:
    async with server(lambda *_: (status, {}, b"no such tea")) as url:
        caught = await failed(workflow(api(f"{url}/tea?token=secret")))
    assert caught.message == f"step `a` failed: GET {url}/tea answered {status}: no such tea"
    assert caught.transient is transient


async def test_W10_a_server_that_is_not_there_is_a_transient_error() -> None:
    async with server(echo) as url:
        pass
    caught = await failed(workflow(api(url)))
    assert caught.transient and caught.message.startswith(f"step `a` failed: GET {url}/ failed: ConnectError")


async def test_W10_a_transient_answer_is_tried_again() -> None:
    answers = iter([503, 503, 200])
    async with server(lambda *_: (next(answers), {}, b"tea")) as url:
        result = await run(workflow(api(url, retry={"maxAttempts": 3, "baseDelayMs": 0})))
    assert result["finalOutput"]["body"] == "tea"


async def test_W10_an_answer_that_never_comes_meets_the_timeout() -> None:
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        caught = await failed(workflow(api(url, timeoutMs=50)))
        await gone.wait()
    assert (caught.message, caught.code) == ("step `a` failed: it timed out after 50 ms", "timeout")


async def test_W10_a_body_over_a_mebibyte_is_an_error() -> None:
    async with server(lambda *_: (200, {}, b"x" * (1024 * 1024 + 1))) as url:
        assert "answers with more than 1 MiB" in (await failed(workflow(api(url)))).message
    async with server(lambda *_: (200, {}, b"x" * (1024 * 1024))) as url:
        assert len((await run(workflow(api(url))))["finalOutput"]["body"]) == 1024 * 1024


async def test_W10_redirects_are_followed_but_to_no_other_scheme_and_not_for_ever() -> None:
    def redirect(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        match path:
            case "/there":
                return 200, {}, b"there"
            case "/away":
                return 302, {"location": "file:///etc/passwd"}, b""
            case "/round":
                return 302, {"location": "/round"}, b""
        return 302, {"location": "/there"}, b""

    async with server(redirect) as url:
        assert (await run(workflow(api(url))))["finalOutput"]["body"] == "there"
        assert "redirects to file, which is not followed" in (await failed(workflow(api(url + "/away")))).message
        assert "redirects more than 5 times" in (await failed(workflow(api(url + "/round")))).message


async def test_K5_what_a_step_sends_goes_to_no_other_host() -> None:
    seen: list[dict[str, str]] = []

    def other(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        seen.append(headers)
        return 200, {}, b"there"

    async with server(other) as there:
        target = there.replace("127.0.0.1", "localhost")
        async with server(lambda *_: (302, {"location": target}, b"")) as url:
            await run(workflow(api(url, headers={"X-Api-Key": "secret", "Authorization": "Bearer secret"})))
    assert seen and not any("secret" in value for headers in seen for value in headers.values())


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"url": "ftp://x/y"}, "must begin with http:// or https://, not ftp"),
        ({"url": "x"}, "must begin with http:// or https://, not nothing"),
        ({"url": "http://x:port"}, "is not a URL"),
        ({"url": 3}, "`url` must be a string"),
        ({"url": "http://x", "headers": {"a": 1}}, "the values of `headers` must be strings"),
    ],
)
async def test_W10_what_an_expression_made_is_checked_before_it_is_sent(request_: dict[str, Any], why: str) -> None:
    http = Http(private=True, permit=anyone)
    with pytest.raises(ToolError, match=why):
        await http.request({"method": "GET", "headers": {}, **request_}, "a", 30)
    await http.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", "2130706433"])
async def test_K_a_server_of_this_machine_is_not_asked_unless_that_is_allowed(host: str) -> None:
    asked: list[str] = []

    def note(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        asked.append(path)
        return 200, {}, b"secret"

    async with server(note) as url:
        port = url.rpartition(":")[2]
        caught = await failed(workflow(api(f"http://{host}:{port}/mine")), private=False)
    assert asked == [] and not caught.transient
    assert "is not a public address; [workflows] private_addresses = true in keephold.toml" in caught.message


async def test_K_a_redirect_to_this_machine_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first hop is made public by name only: there is no server out there to ask."""
    asked: list[str] = []

    def redirect(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        asked.append(path)
        return 302, {"location": "/inside"}, b""

    checked: list[Any] = []

    def once(address: Any) -> bool:
        checked.append(address)
        return len(checked) == 1

    monkeypatch.setattr("keephold.tools.workflow.pinned.is_public", once)
    async with server(redirect) as url:
        caught = await failed(workflow(api(url)), private=False)
    assert asked == ["/"] and len(checked) == 2
    assert "is not a public address" in caught.message


async def test_W10_a_host_that_nobody_knows_is_a_transient_error() -> None:
    caught = await failed(workflow(api("http://nobody.invalid/x")), private=False)
    assert caught.transient and "`nobody.invalid` cannot be resolved" in caught.message


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "::ffff:10.0.0.1",
        "2002:7f00:1::", "64:ff9b::a9fe:a9fe", "::127.0.0.1", "192.88.99.1", "3fff::1", "3fff:fff::1",
    ],
)  # fmt: skip
def test_K_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07::1", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_K_addresses_that_are_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_K5_errors_show_neither_the_query_nor_a_password() -> None:
    import httpx2

    assert shown(httpx2.URL("https://me:pw@example.org:8443/a?token=t#f")) == "https://example.org:8443/a"
