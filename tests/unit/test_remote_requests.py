"""What is the address of a server, and which servers are on this machine: they alone are sent the token that is kept
beside the store (K5). And what else may answer there."""

import asyncio

import httpx2
import pytest

from keephold.control.remote import RemoteControl, is_local
from keephold.errors import KeepholdError


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8420", "http://127.3.2.1", "http://localhost:1/", "https://LOCALHOST", "http://[::1]:8420"],
)
def test_K5_a_loopback_address_is_this_machine(url: str) -> None:
    assert is_local(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1.evil.example",
        "http://127.evil.example:8420",
        "http://localhost.evil.example",
        "http://127.0.0.1@evil.example",
        "http://10.0.0.1",
        "http://[2001:db8::1]",
        "http://[::1",
        "",
    ],
)
def test_K5_a_name_that_looks_like_one_is_not(url: str) -> None:
    assert not is_local(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:abc",
        "http://[::1",
        "http://[::1]x:80",
        "http://",
        "http://:80",
        "http://a\x01b",
        "http://a\udcff",
        "httpfoo://host",
        "work.db",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(KeepholdError, match="is not the address of a server; one looks like http"):
        RemoteControl(url)


def test_K5_an_address_is_shown_without_what_is_secret_in_it() -> None:
    for url in ("127.0.0.1:8420/?token=hunter2", "ftp://me:hunter2@host"):
        with pytest.raises(KeepholdError) as refused:
            RemoteControl(url)
        assert "hunter2" not in refused.value.message
    assert RemoteControl("http://me:hunter2@host:1/a/?token=x").url == "http://host:1/a"


def _url(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_K5_a_token_that_cannot_be_sent_is_not_shown() -> None:
    listening = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)  # looked at when sent
    async with listening, RemoteControl(_url(listening), "hunter2\nhunter3") as remote:
        with pytest.raises(KeepholdError, match="no server answers") as refused:
            await remote.stats()
    assert "hunter" not in refused.value.message


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (404, b"<html>"), (404, b"[]")])
async def test_something_else_that_answers_is_told_so(status: int, body: bytes) -> None:
    other = httpx2.MockTransport(lambda request: httpx2.Response(status, content=body))
    async with RemoteControl("http://host", transport=other) as remote:
        for asking in (remote.stats(), remote.forget("a"), remote.complete("key", {"status": "timeout"})):
            with pytest.raises(KeepholdError, match="not as a keephold server does; is the address right"):
                await asking


@pytest.mark.parametrize("what", ["handles", "conversations"])
async def test_a_list_takes_as_many_requests_as_the_pages_of_the_server_need(what: str) -> None:
    asked: list[tuple[str, str | None]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        limit, after = request.url.params["limit"], request.url.params.get("after")
        asked.append((limit, after))
        first = int(after or 0)
        page = [{"id": str(number)} for number in range(first, first + int(limit))]
        return httpx2.Response(200, json={what: page, "next": str(first + int(limit))})

    async with RemoteControl("http://127.0.0.1:8420", transport=httpx2.MockTransport(answer)) as remote:
        found = await getattr(remote, what)(limit=450)
    assert [each["id"] for each in found[what]] == [str(number) for number in range(450)]
    assert found["next"] == "450"
    assert asked == [("200", None), ("200", "200"), ("50", "400")]
