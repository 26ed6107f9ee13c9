"""Those who must not come in: other names, other pages, without a token, from the network (K1)."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.patience import PATIENCE
from tests.serve.serving import TOKEN, Served, environment, serve, served
from tests.serve.wire import entered, send
from tests.trusting import write_trusted

PAGES = (
    "/",
    "/handles",
    "/conversations",
    "/notifications",
    "/keys",
    "/permissions",
    "/stats",
    "/tools",
    "/sessions",
    "/handles/x",
)
READS = ("/api/handles", "/api/events", "/api/stats", "/api/requests", "/api/keys", "/api/openapi.json")
WRITES = (
    "/do/keys/revoke",
    "/do/handles/x/abort",
    "/do/requests/x",
    "/do/sessions/end",
    "/api/handles/x/abort",
    "/api/keys/revoke",
    "/mcp",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("door")) as server:
        yield server


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong-and-long-enough-to-be-one"},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": "keephold=wrong"},
        {"Cookie": f"keephold={TOKEN}"},
        {"Accept": "text/html"},
    ],
)
async def test_K1_without_the_token_there_is_nothing(server: Served, headers: dict[str, str]) -> None:
    for path in (*PAGES, *READS):
        answered = await send(server, path, headers=headers, token=False)
        assert answered.status == 401, path
        assert TOKEN not in answered.text
    for path in WRITES:
        answered = await send(server, path, method="POST", headers=headers, token=False)
        assert answered.status in (401, 403), path
    assert (await send(server, "/?token=wrong", token=False)).status == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "127.0.0.1@evil"])
async def test_K1_a_name_that_was_pointed_here_is_refused(server: Served, host: str) -> None:
    """DNS rebinding: the browser believes that it talks to evil.example, and has what it needs for that."""
    for path in (*PAGES, *READS, "/healthz", f"/?token={TOKEN}", "/static/style.css"):
        answered = await send(server, path, headers={"Host": host, "Origin": f"http://{host}"})
        assert answered.status == 403, path
        assert not answered.all("set-cookie")
    for path in (*WRITES, "/complete/key"):
        assert (await send(server, path, method="POST", headers={"Host": host})).status == 403, path


async def test_K1_two_hosts_are_none(server: Served) -> None:
    answered = await send(server, "/", headers={"host": "evil.example"})  # beside the right one
    assert answered.status in (400, 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1.evil.example", "null", "http://127.0.0.1:1", "http://[", ""]
)
async def test_K1_pages_of_others_are_refused(server: Served, origin: str) -> None:
    for path in (*WRITES, "/complete/key"):
        answered = await send(server, path, method="POST", headers={"Origin": origin})
        assert answered.status == 403, path
        assert not answered.all("access-control-allow-origin")
    answered = await send(server, "/api/handles", headers={"Origin": origin})
    assert answered.status == 403
    preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    answered = await send(server, "/api/handles", method="OPTIONS", headers=preflight)
    assert answered.status >= 400 and not answered.all("access-control-allow-origin")


async def test_K1_the_cookie_is_for_this_site_and_no_script(server: Served) -> None:
    cookie = await entered(server)
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert not any(attribute.startswith("domain=") for attribute in attributes)


@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "OWN"}, True),
    ],
)
async def test_K1_a_form_of_another_site_is_refused_whatever_cookie_comes_with_it(
    server: Served, headers: dict[str, str], let_in: bool
) -> None:
    cookie = (await entered(server)).partition(";")[0]
    given = {name: server.dashboard if value == "OWN" else value for name, value in headers.items()}
    given |= {"Host": server.host, "Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
    for path in ("/do/keys/revoke", "/api/keys/revoke"):
        answered = await send(server, path, method="POST", headers=given, token=False, body=b"conversation=none")
        assert (answered.status not in (401, 403)) is let_in, (path, answered)
        assert answered.status < 500


async def test_K1_reading_with_the_cookie_is_for_pages_of_its_own(server: Served) -> None:
    cookie = (await entered(server)).partition(";")[0]
    for path in ("/", "/api/handles"):
        assert (await send(server, path, headers={"Cookie": cookie, "Host": server.host}, token=False)).status == 200
        assert (await send(server, path, headers={"Cookie": cookie}, token=False)).status == 401
    for site in ("cross-site", "same-site"):
        headers = {"Cookie": cookie, "Host": server.host, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"}
        assert (await send(server, "/api/handles", headers=headers, token=False)).status == 403


async def test_K4_pages_say_what_a_browser_may_do_with_them(server: Served) -> None:
    for path in PAGES[:-1]:
        answered = await send(server, path)
        assert answered.status == 200
        (policy,) = answered.all("content-security-policy")
        rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";") if rule.strip())
        assert rules["default-src"] == "'self'"
        assert rules["frame-ancestors"] == "'none'"
        assert rules["form-action"] == "'self'"
        assert rules["base-uri"] in ("'none'", "'self'")
        assert "unsafe" not in policy
        assert answered.all("x-frame-options") == ["DENY"]
        assert answered.all("x-content-type-options") == ["nosniff"]
        assert answered.all("referrer-policy") == ["no-referrer"] or answered.all("referrer-policy") == ["same-origin"]
        assert not answered.all("access-control-allow-origin")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_K1_the_network_is_not_let_in_without_a_token(tmp_path: Path, host: str) -> None:
    """The token that is made when none is given is printed here, where nobody of the network can read it."""
    write_trusted(tmp_path / "keephold.toml", "", tmp_path / "state")
    command = serve(tmp_path / "store.db", "--port", "0", "--host", host)
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert b"KEEPHOLD_TOKEN" in done.stderr and b"--tokens" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("variable", ["", "a-long-enough-token-0123456789"])
def test_K1_a_principal_cannot_take_the_owners_name(tmp_path: Path, variable: str) -> None:
    write_trusted(tmp_path / "keephold.toml", "", tmp_path / "state")
    (tmp_path / "tokens").touch(0o600)
    (tmp_path / "tokens").write_text("owner token-of-a-principal-0123456789\n")
    command = serve(tmp_path / "store.db", "--port", "0", "--tokens", str(tmp_path / "tokens"))
    env = environment(tmp_path) | ({"KEEPHOLD_TOKEN": variable} if variable else {})
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert b"`owner`" in done.stderr and b"another name" in done.stderr and b"Traceback" not in done.stderr


async def test_K1_its_own_page_and_its_own_names_are_let_in(server: Served) -> None:
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        for host in ("127.0.0.1", "localhost", "LocalHost", "[::1]"):
            headers = {"Host": f"{host}:{server.port}", "Authorization": f"Bearer {TOKEN}"}
            for origin in ({}, {"Origin": f"http://{host}:{server.port}"}):
                answered = await http.get(f"{server.base}/api/handles", headers=headers | origin)
                assert answered.status_code == 200
