"""Names that are no names: paths in ids, altered keys, places to be sent to, line ends in headers (K2, K4, K5)."""

import asyncio
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from tests.mcp.clients import connected, read
from tests.serve.serving import TOKEN, Served, served
from tests.serve.wire import send

TRICKS = (
    "..",
    "../..",
    "../../../../etc/passwd",
    "%2e%2e",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "..%5c..%5cetc",
    "%252e%252e%252fetc",
    "%00",
    "a%00b",
    "%0d%0aX-Evil:%201",
    "%ff%fe",
    "%ed%a0%80",
    quote("‮evil"),
    quote("é" * 300),
    "'%20OR%201=1--",
    "%25s%25n",
    "{{7*7}}",
    "//evil.example",
    "/etc/passwd",
    "a" * 7000,
)
PLACES = (
    "/handles/{}",
    "/conversations/{}",
    "/api/handles/{}",
    "/api/handles/{}/output",
    "/api/handles/{}/journal",
    "/api/handles/{}/timeline",
    "/api/handles/{}/follow",
    "/api/conversations/{}",
    "/screens/{}",
    "/static/{}",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("names")) as server:
        yield server


@pytest.mark.parametrize("place", PLACES)
async def test_K4_a_path_in_an_id_leads_nowhere(server: Served, place: str) -> None:
    for trick in TRICKS:
        answered = await send(server, place.format(trick))
        assert answered.status < 500 and answered.status != 0, trick
        assert b"root:" not in answered.body and b"import " not in answered.body, trick
        assert not answered.all("x-evil")
        if place == "/static/{}":
            assert answered.status in (400, 404), trick


async def test_K4_nothing_beside_the_static_files_is_served(server: Served) -> None:
    for target in ("/static/../pages.py", "/static/..%2fpages.py", "/static/%2e%2e/pages.py", "/static//etc/passwd"):
        answered = await send(server, target)
        assert answered.status in (400, 404), target
    for target in ("/static/", "/static", "/keephold.toml", "/store.db", "/.git/config", "/templates/base.html"):
        assert (await send(server, target)).status in (303, 307, 400, 404), target


@pytest.mark.parametrize(
    "target", [b"/a b", b"/\x00", b"/\xff\xfe", b"*", b"http://evil.example/", b"//evil.example/%2f"]
)
async def test_a_request_line_that_is_none_is_no_trouble(server: Served, target: bytes) -> None:
    answered = await send(server, target)
    assert 300 <= answered.status < 500
    assert not any("evil" in place for place in answered.all("location"))


async def test_K2_a_key_is_good_once_and_only_as_it_was_given(server: Served) -> None:
    async with connected(server.mcp, token=TOKEN) as client:
        made = read(await client.call_tool("create_wait_handle", {"handleId": "h", "type": "hook"}))
        other = read(await client.call_tool("create_wait_handle", {"handleId": "other", "type": "hook"}))
        key = made["key"]
        half = len(key) // 2
        altered = [key[:at] + ("A" if key[at] != "A" else "B") + key[at + 1 :] for at in range(0, len(key), 3)]
        altered += [
            key + "A",
            key[:-1],
            key.upper(),
            key[:half] + other["key"][half:],
            "%2e%2e",
            "x",
            "%00",
            "a" * 5000,
        ]
        body = b'{"status":"ok","payload":1}'
        for wrong in altered:
            if wrong == key:
                continue
            answered = await send(server, f"/complete/{wrong}", method="POST", token=False, body=body)
            assert (answered.status, answered.body) == (404, b'{"status":"unknown_or_revoked"}'), wrong
        first, *again = await asyncio.gather(
            *(send(server, f"/complete/{key}", method="POST", token=False, body=body) for _ in range(10))
        )
        statuses = sorted(answered.status for answered in (first, *again))
        assert statuses == [200] + [409] * 9
        assert read(await client.call_tool("wait_for", {"handleId": "h"}))["result"] == 1
        listed = read(await client.call_tool("list_wait_handles", {"status": "pending"}))
        assert [handle["id"] for handle in listed["handles"]] == ["other"]
    assert key not in server.said.read_text()


BACK = ("//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", "/%0d%0aSet-Cookie:x=1")


@pytest.mark.parametrize("back", BACK)
async def test_K1_nobody_is_sent_away_by_a_form(server: Served, back: str) -> None:
    headers = {"Origin": server.base, "Content-Type": "application/x-www-form-urlencoded"}
    bodies = [f"conversation=none&{name}={quote(back)}".encode() for name in ("back", "next", "return", "to")]
    for body in bodies:
        for more in ({}, {"Referer": back if "://" in back else f"{server.base}{back}"}):
            answered = await send(server, "/do/keys/revoke", method="POST", headers=headers | more, body=body)
            assert answered.status < 500
            for place in answered.all("location"):
                assert place.startswith("/") and not place.startswith(("//", "/\\")), place
            assert not answered.all("set-cookie")
    answered = await send(server, f"/?token={TOKEN}&next={quote(back)}&back={quote(back)}", token=False)
    (place,) = answered.all("location")
    assert place.startswith(f"{server.dashboard}/login?ticket=") and TOKEN not in place
    answered = await send(server, place.removeprefix(server.dashboard), headers={"Host": server.host}, token=False)
    (place,) = answered.all("refresh")
    assert place.startswith("0; url=/?next=")


@pytest.mark.parametrize("evil", ["%0d%0aX-Evil:%201", "%0aX-Evil:%201", "\u0085X-Evil: 1"])
async def test_no_header_comes_out_of_a_request(server: Served, evil: str) -> None:
    for path in (f"/handles?q={evil}", f"/handles/{evil}", f"/?token={TOKEN}{evil}", f"/nothing{evil}", f"//{evil}"):
        answered = await send(server, quote(path, safe="%/?=&:"))
        assert answered.status < 500
        assert not answered.all("x-evil")
