"""Sessions and their file: they expire, are renewed, are tied to the token, and survive what happens to it (K9)."""

import asyncio
import fcntl
import time
from pathlib import Path

import pytest
from tests.serve.application import TOKEN
from tests.serve.test_door import asked, guard, logged_in

from keephold.errors import KeepholdError
from keephold.serve import sessions as sessions_module
from keephold.serve.sessions import LASTS_SECS, Sessions, browser_of

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


class Clock:
    """The time of day, as the test says."""

    def __init__(self) -> None:
        self.time = 1_767_225_600.0

    def __call__(self) -> float:
        return self.time


async def test_K9_a_session_lasts_while_it_is_used_and_expires_when_it_is_not(tmp_path: Path) -> None:
    clock = Clock()
    sessions = Sessions(TOKEN, tmp_path / "sessions", now=clock)
    guarded = guard(TOKEN, sessions=sessions)
    mine = await logged_in(guarded)
    begun = clock.time
    for _ in range(3):
        first = await asked(guarded, "/", mine)
        assert first.text == "inside" and "set-cookie" not in first.headers
        clock.time += LASTS_SECS - 1
        again = await asked(guarded, "/", mine)
        assert again.text == "inside" and again.headers["set-cookie"].startswith(f"{mine['Cookie']}; Max-Age=")
    (session,) = Sessions(TOKEN, tmp_path / "sessions", now=clock).all()
    assert (session.begun, session.used) == (begun, clock.time)
    clock.time += LASTS_SECS
    assert (await asked(guarded, "/", mine)).status_code == 401
    assert sessions.all() == []


def test_K9_a_ticket_is_good_once_and_soon() -> None:
    clock = Clock()
    sessions = Sessions(TOKEN, now=clock)
    ticket = sessions.ticket("/handles")
    assert (sessions.redeem(ticket), sessions.redeem(ticket)) == ("/handles", None)
    late = sessions.ticket("/")
    clock.time += 30
    assert sessions.redeem(late) is None
    many = [sessions.ticket(str(number)) for number in range(101)]
    assert sessions.redeem(many[0]) is None and sessions.redeem(many[1]) == "1"


def test_K9_servers_of_one_store_share_their_sessions(tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    one, two = Sessions(TOKEN, file), Sessions(TOKEN, file)
    first, second = one.begin(FIREFOX), two.begin("curl/8.0 <script>alert(1)</script>")
    assert one.name == two.name
    for sessions in (one, two):
        assert {each.browser for each in sessions.all()} == {"Firefox on Linux", "unknown browser"}
    found = one.find(second)
    assert found is not None and two.end(found.id) == [found]
    assert one.find(second) is None and one.find(first) is not None
    assert two.end("none") == []
    before = one.name
    assert len(Sessions(file=file).end()) == 1  # as `keephold logout` does, which has no token
    assert one.find(first) is None and two.find(first) is None
    assert one.name == two.name != before
    assert one.begin(FIREFOX) and two.all()
    file.unlink()
    assert one.all() == [] and two.all() == [] and one.name == two.name


def test_K9_the_hundredth_and_first_session_ends_the_one_not_used_for_longest(tmp_path: Path) -> None:
    clock = Clock()
    sessions = Sessions(TOKEN, tmp_path / "sessions", now=clock)
    cookies = []
    for _ in range(101):
        clock.time += 1
        cookies.append(sessions.begin(FIREFOX))
    assert sessions.find(cookies[0]) is None and sessions.find(cookies[1]) is not None
    assert len(sessions.all()) == 100


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff", b'{"name": "x"}', b"[" * 100_000])
def test_K9_a_damaged_file_ends_sessions_at_the_next_start_only(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "sessions"
    sessions = Sessions(TOKEN, file)
    cookie = sessions.begin(FIREFOX)
    file.write_bytes(damage)
    assert sessions.find(cookie) is not None
    assert Sessions(TOKEN, file).find(cookie) is None
    file.chmod(0o644)
    assert Sessions(TOKEN, file).all() == [], "others could have read the name"
    assert file.stat().st_mode & 0o077 == 0


async def test_K9_where_nothing_can_be_written_sessions_last_as_long_as_the_server(tmp_path: Path) -> None:
    sessions = Sessions(TOKEN, tmp_path / "missing" / "sessions")
    name, cookie = sessions.name, sessions.begin(FIREFOX)
    assert sessions.find(cookie) is not None and sessions.name == name and len(sessions.all()) == 1
    with pytest.raises(KeepholdError, match="until the server restarts"):
        sessions.end()
    assert sessions.find(cookie) is None and sessions.name != name
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    linked = Sessions(TOKEN, tmp_path / "link")
    assert linked.find(linked.begin(FIREFOX)) is not None and not (tmp_path / "victim").exists()


def test_K9_a_server_does_not_wait_for_a_process_that_holds_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sessions"
    server = Sessions(TOKEN, file)
    kept = server.begin(FIREFOX)
    with file.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("the server's loop stops"))
        assert server.find(server.begin(FIREFOX)) is not None
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(held, fcntl.LOCK_UN))
        assert len(Sessions(file=file).end()) == 1, "`keephold logout` waits"
    assert server.find(kept) is None


async def test_K9_many_servers_at_once_lose_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sessions"
    monkeypatch.setattr(sessions_module, "_TRIES", 1_000_000)  # no thread may give up on a busy machine

    def begin() -> list[str]:
        server = Sessions(TOKEN, file)
        return [server.begin(FIREFOX) for _ in range(5)]

    cookies = await asyncio.gather(*(asyncio.to_thread(begin) for _ in range(3)))
    assert all(Sessions(TOKEN, file).find(cookie) for each in cookies for cookie in each)
    assert [each.name for each in tmp_path.iterdir()] == ["sessions"]


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (FIREFOX, "Firefox on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15) Version/18 Safari/605.1", "Safari on macOS"),
        ("Mozilla/5.0 (Linux; Android 15) Chrome/140.0 Mobile Safari/537.36", "Chrome on Android"),
        ("Firefox/1 <b>\x1b[31m", "Firefox"),
        ("", "unknown browser"),
    ],
)
def test_K4_a_browser_is_named_by_our_own_words(agent: str, name: str) -> None:
    assert browser_of(agent) == name
