"""The door, rule by rule and both ways: names, pages, tokens, the cookie, and what every response says (K1, K2)."""

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message
from tests.control.test_full_disk import Disk, mended
from tests.durable.lives import approval, ok
from tests.mcp.clients import connected
from tests.patience import until
from tests.serve.application import TOKEN, Application, application
from tests.turn.calls import STATEFUL, spawn

import keephold
from keephold import Key
from keephold.control.webhooks import Completing
from keephold.handles.clock import SystemClock
from keephold.serve import app
from keephold.serve.app import App
from keephold.serve.door import HEADERS, ServeDoor
from keephold.serve.sessions import SessionFile, Sessions
from keephold.store.sqlite import SqliteStore

ANN, BOB = "token-of-ann-0123456789abcdef", "token-of-bob-0123456789abcdef"
PRINCIPALS = {"ann": ANN, "bob": BOB}
OWNER = {"Authorization": f"Bearer {TOKEN}"}
BODY: dict[str, Any] = {"json": {"conversation": "none"}}
REVOKE = "/api/keys/revoke"
"""Something that changes something, and is harmless."""


@keephold.tool(actions=STATEFUL)
async def idle() -> str:
    return "done"


@asynccontextmanager
async def door(**options: Any) -> AsyncIterator[tuple[Application, httpx2.AsyncClient]]:
    """An application, and somebody who has nothing."""
    async with application([idle], principals=PRINCIPALS, **options) as served, served.client(None) as http:
        yield served, http


async def test_K1_the_owners_token_opens_everything_and_nothing_else_does() -> None:
    async with door() as (_, http):
        for path in ("/", "/handles", "/stats", "/api/handles", "/api/openapi.json", "/mcp"):
            for headers in (
                {},
                {"Authorization": "Bearer"},
                {"Authorization": TOKEN},
                {"Authorization": f"Basic {TOKEN}"},
                {"Authorization": f"Bearer {TOKEN}x"},
                {"Authorization": f"Bearer {TOKEN[:-1]}"},
                {"Authorization": "Bearer \xfc"},
            ):
                given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
                refused = await http.get(path, headers=given)
                assert refused.status_code == 401, (path, headers)
                assert refused.headers["www-authenticate"] == "Bearer" and TOKEN not in refused.text
                assert refused.json()["error"]["code"] == "unauthorized"
            if path != "/mcp":
                for scheme in ("Bearer", "bearer", "BEARER"):
                    answered = await http.get(path, headers={"Authorization": f"{scheme}  {TOKEN}"})
                    assert answered.status_code == 200, path
        assert (await http.post(REVOKE, **BODY)).status_code == 401
        assert (await http.post(REVOKE, headers=OWNER, **BODY)).status_code == 200


async def test_K1_tokens_of_principals_open_MCP_alone_each_with_handles_of_its_own() -> None:
    async with door() as (served, http):
        for path in ("/", "/api/handles", "/api/events"):
            assert (await http.get(path, headers={"Authorization": f"Bearer {ANN}"})).status_code == 401, path
        assert (await http.post(REVOKE, headers={"Authorization": f"Bearer {ANN}"}, **BODY)).status_code == 401
        for token, id in ((ANN, "a"), (BOB, "b"), (TOKEN, "o")):
            async with connected(f"{served.base}/mcp", token=token) as client:
                made = await client.call_tool("idle", {"action": "spawn", "id": id})
                assert not made.is_error
                for other in {"a", "b", "o"} - {id}:
                    assert (await client.call_tool("idle", {"action": "fetch", "id": other})).is_error
        found = (await served.control.store_view.handles())["handles"]
        assert {(each["conversation"], each["id"]) for each in found} == {
            ("mcp:ann", "a"),
            ("mcp:bob", "b"),
            ("mcp", "o"),
        }


async def test_K1_the_session_of_one_is_nobody_elses() -> None:
    async with door() as (_, http):
        hello = {
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
        }  # fmt: skip
        accept = {"Accept": "application/json, text/event-stream"}
        sessions = {}
        for token in (TOKEN, ANN, BOB):
            begun = await http.post("/mcp", json=hello, headers={"Authorization": f"Bearer {token}", **accept})
            assert begun.status_code == 200
            sessions[token] = begun.headers["mcp-session-id"]
        for whose, session in sessions.items():
            for token in sessions:
                headers = {"Authorization": f"Bearer {token}", "Mcp-Session-Id": session, **accept}
                listed = await http.post(
                    "/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, headers=headers
                )
                assert (listed.status_code == 200) is (token == whose), (whose, token, listed.text)


async def test_K1_some_places_are_open_and_tell_nothing() -> None:
    async with door() as (served, http):
        assert (await http.get("/healthz")).json() == {"ok": True}
        ahead = iter([0.0])
        served.runtime.registry.clock = SystemClock(lambda: time.time() + next(ahead, 3600.0))
        assert (await http.get("/healthz")).json() == {"ok": True, "clock_jump_secs": 3600}
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get("/static/style.css")).status_code == 200
        for path in ("/healthz/x", "/healthzz", "/static/", "/static/none", "/complete/", "/complete/key", "/metricsx"):
            answered = await http.get(path, headers={"Accept": "text/html"})
            assert answered.status_code in (401, 404, 405), path
            assert "/handles" not in answered.text and "Needs you" not in answered.text, path
    async with door(loopback=False) as (_, http):
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers=OWNER)).status_code == 200


async def test_K2_a_key_is_the_authority_for_its_one_wait() -> None:
    keys: list[Key] = []
    async with application([approval(keys)]) as served, served.client(None) as http:
        async with served.runtime.turn("main") as turn:
            await turn.run([spawn("approve", "a")])
        await until(lambda: bool(keys))
        assert (await http.post(f"/complete/{keys[0]}x", json=ok(1))).status_code == 404
        assert (await http.post(f"/complete/{keys[0]}", json=ok(1))).json() == {"status": "accepted"}
        assert (await http.post(f"/complete/{keys[0]}", json=ok(1))).status_code == 409
        evil = await http.post(f"/complete/{keys[0]}", json=ok(1), headers={"Origin": "http://evil.example"})
        assert evil.status_code == 403


@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ({"Host": "127.0.0.1"}, True),
        ({"Host": "LOCALHOST:1"}, True),
        ({"Host": "[::1]:1234"}, True),
        ({"Host": "mine.example"}, True),
        ({"Host": "evil.example"}, False),
        ({"Host": "127.0.0.1.evil.example"}, False),
        ({"Host": "localhost:1:2"}, False),
        ({"Host": "user@localhost"}, False),
        ({"Host": "localhost", "Origin": "http://localhost"}, True),
        ({"Host": "localhost", "Origin": "HTTPS://Localhost"}, True),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, False),
        ({"Host": "localhost", "Origin": "null"}, False),
        ({"Host": "localhost", "Origin": ""}, False),
        ({"Host": "localhost", "Origin": "ftp://localhost"}, False),
        ({"Host": "localhost", "Origin": "http://localhost/"}, False),
        ({"Host": "localhost", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Host": "localhost", "Sec-Fetch-Site": "none"}, True),
        ({"Host": "localhost", "Sec-Fetch-Site": "same-site"}, False),
        ({"Host": "localhost", "Sec-Fetch-Site": "cross-site"}, False),
        ({"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, True),
    ],
)
async def test_K1_names_and_pages(headers: dict[str, str], let_in: bool) -> None:
    """By a link one may come from anywhere; what only a page of another site would ask for is refused."""
    for token in (True, False):
        given = {**headers, **(OWNER if token else {})}
        answered = await asked(guard(TOKEN, PRINCIPALS, ["mine.example"]), "/handles", given)
        assert answered.status_code == (403 if not let_in else 200 if token else 401)
    if headers.get("Sec-Fetch-Mode"):
        posted = await asked(guard(TOKEN), "/x", {**headers, **OWNER}, method="POST")
        assert posted.status_code == 403
    if headers.get("Host") == "evil.example":
        anywhere = guard(TOKEN, PRINCIPALS, ["0.0.0.0"])
        assert (await asked(anywhere, "/handles", {**headers, **OWNER})).status_code == 200


@pytest.mark.parametrize(
    "path", ["/healthz", "/complete/key", "/static/x", "/metrics", "/login", "/mcp", "/?token=" + TOKEN]
)
async def test_K1_a_strange_name_is_refused_wherever_it_asks(path: str) -> None:
    for method in ("GET", "POST"):
        guarded = guard(TOKEN)
        assert (await asked(guarded, path, {"Host": "evil.example"}, method=method)).status_code == 403
        evil = {"Host": "localhost", "Origin": "http://evil.example"}
        assert (await asked(guarded, path, evil, method=method)).status_code == 403


async def there(scope: Any, receive: Any, send: Any) -> None:
    """What is behind the door."""
    await PlainTextResponse("inside")(scope, receive, send)


def guard(owner: str, *more: Any, **options: Any) -> ServeDoor:
    return ServeDoor(there, cast(Completing, there), owner, *more, **options)


async def asked(
    app: Any, path: str, headers: dict[str, str] | None = None, *, method: str = "GET", content: bytes = b""
) -> httpx2.Response:
    """One request, straight to an application; its headers are these and no others but a Host."""
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.request(method, path, headers={"Accept": "*/*", **(headers or {})}, content=content)


# The session


def cookie_of(answered: httpx2.Response) -> str:
    return answered.headers["set-cookie"].partition(";")[0]


async def logged_in(guarded: ServeDoor, path: str = "/") -> dict[str, str]:
    """Log in as a browser does: its headers from then on."""
    answered = await asked(guarded, f"{path}?token={TOKEN}")
    assert answered.status_code == 303
    there = httpx2.URL(answered.headers["location"])
    entered = await asked(guarded, str(there))
    assert entered.status_code == 200
    return {"Host": there.host, "Cookie": cookie_of(entered)}


async def test_K9_the_address_with_the_token_leads_to_a_session_at_a_name_of_its_own() -> None:
    guarded = guard(TOKEN)
    answered = await asked(guarded, f"/?token={TOKEN}", {"Host": "127.0.0.1:9000"})
    assert answered.status_code == 303 and "set-cookie" not in answered.headers
    location = answered.headers["location"]
    assert re.fullmatch(r"http://keephold-[0-9a-f]{32}\.localhost:9000/login\?ticket=[\w-]{43}", location)
    wrong_place = await asked(guarded, location.replace(httpx2.URL(location).host, "localhost"))
    assert wrong_place.status_code == 401 and "set-cookie" not in wrong_place.headers
    entered = await asked(guarded, location)
    assert entered.status_code == 200 and entered.headers["refresh"] == "0; url=/"
    cookie = entered.headers["set-cookie"]
    assert cookie.startswith("keephold=") and TOKEN not in cookie
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert attributes == {"httponly", "samesite=strict", "path=/", "max-age=2592000"}
    again = await asked(guarded, location)
    assert again.status_code == 401 and "set-cookie" not in again.headers and "used before" in again.text
    name = httpx2.URL(location).host
    for host, let_in in ((name, True), (f"{name}:1", True), (name.upper(), True), ("localhost", False)):
        inside = await asked(guarded, "/", {"Cookie": cookie_of(entered), "Host": host})
        assert (inside.text == "inside") is let_in, host
    stays = await asked(guarded, f"/?token={TOKEN}", {"Cookie": cookie_of(entered), "Host": name})
    assert (stays.status_code, stays.headers["location"]) == (303, "/") and "set-cookie" not in stays.headers
    other = await asked(guarded, "/", {"Host": "keephold-guess.localhost", "Accept": "text/html"})
    assert other.status_code == 403 and "http://127.0.0.1/" in other.text and name not in other.text


async def test_K9_the_public_address_keeps_its_sessions_where_it_is() -> None:
    for url, cookie, secure in (
        ("https://mine.example", "__Host-keephold=", True),
        ("https://mine.example:8443", "__Host-keephold_8443=", True),
        ("http://mine.example:8420", "keephold_8420=", False),
    ):
        guarded = guard(TOKEN, None, ["127.0.0.1", "mine.example"], url=url)
        here = {"Host": url.partition("//")[2]}
        answered = await asked(guarded, f"/handles?token={TOKEN}", here)
        assert (answered.status_code, answered.headers["location"]) == (303, "/handles")
        said = answered.headers["set-cookie"]
        assert said.startswith(cookie) and ("; Secure" in said) is secure and "domain" not in said.lower()
        assert (await asked(guarded, "/", {**here, "Cookie": cookie_of(answered)})).text == "inside"
        elsewhere = await asked(guarded, "/", {"Host": "127.0.0.1", "Cookie": cookie_of(answered)})
        assert elsewhere.status_code == 401


async def test_K9_there_is_no_session_where_other_servers_would_get_its_cookie() -> None:
    html = {"Accept": "text/html"}
    for guarded, host in (
        (guard(TOKEN, None, ["192.168.1.5"], named=False), "192.168.1.5"),
        (guard(TOKEN, None, ["192.168.1.5"], named=False), "localhost"),
        (guard(TOKEN, None, ["0.0.0.0"]), "nas.example"),
    ):
        here = {"Host": host, **html}
        for answered in (
            await asked(guarded, "/", here),
            await asked(guarded, f"/?token={TOKEN}", here),
            await asked(guarded, "/login", here, method="POST", content=f"token={TOKEN}".encode()),
        ):
            assert answered.status_code == 403 and "--url" in answered.text
            assert "set-cookie" not in answered.headers and "location" not in answered.headers
        assert (await asked(guarded, "/", {**here, **OWNER})).text == "inside"


async def test_K1_a_wrong_token_and_a_token_elsewhere_give_nothing() -> None:
    guarded = guard(TOKEN)
    wrong = await asked(guarded, "/?token=nonsense")
    assert wrong.status_code == 401 and "set-cookie" not in wrong.headers and "not the token" in wrong.text
    for path in (f"/api/handles?token={TOKEN}", f"/mcp?token={TOKEN}"):  # not for programs: addresses are logged
        assert (await asked(guarded, path)).status_code == 401
    assert (await asked(guarded, f"/?token={TOKEN}", method="POST")).status_code == 401
    assert (await asked(guarded, "/?token=%FF%00ü")).status_code == 401
    for path in ("/login?ticket=", "/login?ticket=nonsense", "/login?ticket=%FF%00ü"):
        assert (await asked(guarded, path)).status_code == 401


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/handles/x?token=T", "/handles/x"),
        ("/handles?a=1&token=T&b=%26", "/handles?a=1&b=%26"),
        ("http://localhost//evil.example?token=T", "/evil.example"),
        ("/%2F/evil.example?token=T", "/evil.example"),
        ("/\\evil.example?token=T", "/%5Cevil.example"),
        ("/%0d%0aX-Evil:%201?token=T", "/%0D%0AX-Evil:%201"),
        ("/%09/evil.example?token=T", "/%09/evil.example"),
        ("/x%3Fy?token=T", None),
    ],
)
async def test_K1_the_redirect_never_leaves_the_site(path: str, place: str | None) -> None:
    guarded = guard(TOKEN)
    answered = await asked(guarded, path.replace("=T", f"={TOKEN}"))
    assert answered.status_code == 303 and TOKEN not in answered.headers["location"]
    home = f"http://{guarded._sessions.name}.localhost/"
    assert answered.headers["location"].startswith(f"{home}login?ticket=")
    entered = await asked(guarded, answered.headers["location"])
    wait, _, location = entered.headers["refresh"].partition("; url=")
    assert wait == "0" and re.match(r"/(?![/\\\\])", location) and "\n" not in location
    assert place is None or location == place
    assert str(httpx2.URL(home).join(location)).startswith(home)
    assert "x-evil" not in answered.headers and "x-evil" not in entered.headers


@pytest.mark.parametrize(
    ("cookie", "let_in"),
    [
        ("GOOD", True),
        ('other={"a": 1}; GOOD', True),  # what other programs of this host have set
        ("a b=c; =; ;; GOOD; $x=1", True),
        ("keephold=tossed; GOOD; keephold=tossed", True),  # what a page of another name may set for all of them
        ("GOODx", False),
        ("keephold=wrong", False),
        (f"keephold={TOKEN}", False),
        ("keephold_1=VALUE", False),
        ("", False),
        ("keephold", False),
        ("keephold=\xfc", False),
    ],
)
async def test_K1_the_cookie_is_known_among_others(cookie: str, let_in: bool) -> None:
    guarded = guard(TOKEN)
    mine = await logged_in(guarded)
    given = cookie.replace("GOOD", mine["Cookie"]).replace("VALUE", mine["Cookie"].partition("=")[2])
    headers = {"Host": mine["Host"], "Cookie": given.encode("latin-1")}
    answered = await asked(guarded, "/handles", headers)  # type: ignore[arg-type]
    assert answered.status_code == (200 if let_in else 401)


@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ({"Origin": "OWN"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({}, False),
        ({"Origin": "http://localhost"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Referer": "http://localhost/"}, False),
    ],
)
async def test_K1_the_cookie_changes_something_only_from_a_page_of_ours(headers: dict[str, str], let_in: bool) -> None:
    guarded = guard(TOKEN)
    cookie = await logged_in(guarded)
    headers = {name: value.replace("OWN", f"http://{cookie['Host']}") for name, value in headers.items()}
    for method in ("POST", "PUT", "DELETE"):
        for path in ("/do/x", "/api/x", "/mcp"):
            answered = await asked(guarded, path, {**cookie, **headers}, method=method)
            assert answered.status_code == (200 if let_in else 403), (method, path)
            # with the token itself no page is asked about: whoever has it may
            if not headers:
                assert (await asked(guarded, path, {**OWNER}, method=method)).status_code == 200


async def test_K1_another_token_makes_the_cookie_worthless(tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    mine = await logged_in(guard(TOKEN, sessions=Sessions(TOKEN, SessionFile(file))))
    assert (await asked(guard(TOKEN, sessions=Sessions(TOKEN, SessionFile(file))), "/", mine)).text == "inside"
    answered = await asked(guard(f"{TOKEN}2", sessions=Sessions(f"{TOKEN}2", SessionFile(file))), "/", mine)
    assert answered.status_code == 403


# The form


async def test_K1_a_browser_without_a_token_is_asked_for_it() -> None:
    guarded = guard(TOKEN)
    page = await asked(guarded, "/handles", {"Accept": "text/html,*/*"})
    assert page.status_code == 401 and '<form method="post" action="/login">' in page.text
    assert page.headers["cache-control"] == "no-store" and "<script" not in page.text and "style=" not in page.text
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    right = await asked(guarded, "/login", form, method="POST", content=f"token={TOKEN}".encode())
    assert right.status_code == 200 and "set-cookie" not in right.headers and "location" not in right.headers
    place = right.headers["refresh"].removeprefix("0; url=")  # no form's answer may redirect to another site
    assert place in right.text and place.startswith("http://keephold-")
    entered = await asked(guarded, place)
    mine = {"Host": httpx2.URL(place).host, "Cookie": cookie_of(entered)}
    assert (await asked(guarded, "/", mine)).text == "inside"
    spaces = await asked(
        guarded, "/login", {**form, "Host": mine["Host"]}, method="POST", content=f"token=+{TOKEN}%0D%0A".encode()
    )
    assert (spaces.status_code, spaces.headers["location"]) == (303, "/"), "as it is pasted, where sessions are"
    assert "set-cookie" in spaces.headers
    for wrong in (
        b"",
        b"token=",
        b"token=no",
        b"nonsense",
        b"\xff\xfe",
        b"token=" + b"x" * 5000,
        b"Token=" + TOKEN.encode(),
    ):
        answered = await asked(guarded, "/login", form, method="POST", content=wrong)
        assert answered.status_code == 401 and "set-cookie" not in answered.headers, wrong
    assert (await asked(guarded, "/login", {"Accept": "text/html"})).status_code == 401


# What every response says


async def test_K4_every_response_says_what_browsers_may_do_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(request: Request) -> PlainTextResponse:
        raise RuntimeError("broken")

    routes = App._routes
    monkeypatch.setattr(App, "_routes", lambda self: [Route("/breaks", breaks), *routes(self)])
    async with door() as (_served, http):
        for path, status in (
            ("/", 200), ("/api/stats", 200), ("/api/none", 404), ("/none", 404), ("/handles/none", 404),
            ("/static/style.css", 200), ("/static/none", 404), ("/healthz", 200), ("/metrics", 200), ("/breaks", 500),
            ("/complete/x", 405), (f"/?token={TOKEN}", 303), ("/api/keys/revoke", 405),
        ):  # fmt: skip
            for headers in (OWNER, {**OWNER, "Host": "evil.example"}, {}):
                answered = await http.get(path, headers=headers)
                if headers is OWNER:
                    assert answered.status_code == status, path
                for name, value in HEADERS.items():
                    assert answered.headers[name] == value, (path, headers, name)
        policy = HEADERS["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy


async def test_K6_a_long_body_is_refused_before_any_of_it_has_come() -> None:
    async def never() -> Message:
        raise AssertionError("nobody reads it")

    for length, status in (("101", 413), ("9" * 5000, 413), ("100", 200), ("-1", 200), ("\u0661", 200)):
        sent: list[Message] = []

        async def send(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"authorization", OWNER["Authorization"].encode())]
        headers.append((b"content-length", length.encode()))
        scope = {"type": "http", "path": "/api/x", "method": "POST", "query_string": b"", "headers": headers}
        await guard(TOKEN, longest=100)(scope, never, send)
        assert sent[0]["status"] == status, length


async def test_nothing_but_HTTP_is_spoken() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    await guard(TOKEN)({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_R4_health_says_that_the_store_cannot_write_before_anybody_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_CHECK_SECS", 0.0)
    disk = Disk()
    store = SqliteStore(tmp_path / "work.db", fault=disk)
    async with application([idle], store=store) as served, served.client(None) as http:
        assert (await http.get("/healthz")).status_code == 200
        disk.full = True
        told = await http.get("/healthz")
        assert (told.status_code, told.json()) == (503, {"ok": False, "problem": "the store cannot write"})
        disk.full = False
        await mended(store)
        assert (await http.get("/healthz")).json() == {"ok": True}
