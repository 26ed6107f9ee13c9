"""Sessions and where they are kept: they expire, are renewed, are tied to the token, and are shared by servers (K9)."""

import asyncio
import fcntl
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.serve.application import TOKEN
from tests.serve.test_door import asked, guard, logged_in

from keephold.durable.keys import new_secret
from keephold.errors import KeepholdError
from keephold.serve import sessions as sessions_module
from keephold.serve.sessions import LASTS_SECS, SessionFile, Sessions, browser_of, place_of
from keephold.store import open_store
from keephold.store.base import SecretAdded
from keephold.store.postgres.store import PostgresStore

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


class Clock:
    """The time of day, as the test says."""

    def __init__(self) -> None:
        self.time = 1_767_225_600.0

    def __call__(self) -> float:
        return self.time


async def fresh(sessions: Sessions) -> Sessions:
    await sessions.refresh()
    return sessions


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("postgres")


@asynccontextmanager
async def two_servers(store: str, now: Callable[[], float] = time.time) -> AsyncIterator[tuple[Sessions, Sessions]]:
    """The sessions of two servers on one store."""
    async with AsyncExitStack() as stack:
        opened = [await opened_store(stack, store) for _ in range(2)]
        one, two = [Sessions(TOKEN, place_of(each, TOKEN), now=now) for each in opened]
        yield one, two


async def opened_store(stack: AsyncExitStack, url: str) -> Any:
    store = open_store(url)
    await store.open(lambda _: None)
    stack.push_async_callback(store.close)
    return store


async def test_K9_a_session_lasts_while_it_is_used_and_expires_when_it_is_not(tmp_path: Path) -> None:
    clock = Clock()
    sessions = Sessions(TOKEN, SessionFile(tmp_path / "sessions"), now=clock)
    guarded = guard(TOKEN, sessions=sessions)
    mine = await logged_in(guarded)
    begun = clock.time
    for _ in range(3):
        first = await asked(guarded, "/", mine)
        assert first.text == "inside" and "set-cookie" not in first.headers
        clock.time += LASTS_SECS - 1
        again = await asked(guarded, "/", mine)
        assert again.text == "inside" and again.headers["set-cookie"].startswith(f"{mine['Cookie']}; Max-Age=")
    (session,) = (await fresh(Sessions(TOKEN, SessionFile(tmp_path / "sessions"), now=clock))).all()
    assert (session.begun, session.used) == (begun, clock.time)
    clock.time += LASTS_SECS
    assert (await asked(guarded, "/", mine)).status_code == 401
    assert sessions.all() == []


async def test_K9_a_ticket_is_good_once_and_soon(store: str) -> None:
    clock = Clock()
    async with two_servers(store, clock) as (one, two):
        ticket = await one.ticket("/handles")
        assert sorted([await two.redeem(ticket) or "", await one.redeem(ticket) or ""]) == ["", "/handles"]
        assert not one.find(ticket) and await one.redeem(await one.begin(FIREFOX)) is None, "neither is the other"
        at_once = await two.ticket("/")
        redeemed = await asyncio.gather(*(each.redeem(at_once) for each in (one, two, one, two)))
        assert sorted(each or "" for each in redeemed) == ["", "", "", "/"]
        late = await one.ticket("/")
        clock.time += 30
        assert await two.redeem(late) is None


async def test_K9_a_ticket_is_good_at_a_server_whose_clock_is_behind(store: str) -> None:
    clock = Clock()
    async with two_servers(store, clock) as (one, two):
        ticket, other = await one.ticket("/handles"), await one.ticket("/")
        clock.time -= 2
        assert await two.redeem(ticket) == "/handles"
        clock.time -= 28
        assert await two.redeem(other) is None, "it would be good for long if the clock was set back"


async def test_K9_the_hundredth_and_first_ticket_ends_the_first() -> None:
    sessions = Sessions(TOKEN, now=Clock())
    many = [await sessions.ticket(str(number)) for number in range(101)]
    assert await sessions.redeem(many[0]) is None and await sessions.redeem(many[1]) == "1"


async def test_K9_servers_of_one_store_share_their_sessions(store: str) -> None:
    async with two_servers(store) as (one, two):
        first, second = await one.begin(FIREFOX), await two.begin("curl/8.0 <script>alert(1)</script>")
        for sessions in (one, two):
            assert {each.browser for each in (await fresh(sessions)).all()} == {"Firefox on Linux", "unknown browser"}
        assert one.name == two.name
        found = one.find(second)
        assert found is not None and await two.end(found.id) == [found]
        assert (await fresh(one)).find(second) is None and one.find(first) is not None
        assert await two.end("none") == []
        before = one.name
        assert len(await Sessions(place=one._place).end()) == 1  # as `keephold logout` does, which has no token
        assert (await fresh(one)).find(first) is None and (await fresh(two)).find(first) is None
        assert one.name == two.name != before
        assert await one.begin(FIREFOX) and (await fresh(two)).all()


async def test_K9_a_use_that_is_noted_late_does_not_bring_a_session_back(store: str) -> None:
    clock = Clock()
    async with two_servers(store, clock) as (one, two):
        cookie = await one.begin(FIREFOX)
        (found,) = one.all()
        clock.time += 1000
        await two.end(found.id)
        await one.renew(found)
        assert one.find(cookie) is None and (await fresh(two)).find(cookie) is None


async def test_K9_the_document_is_not_enough_to_begin_a_session(store: str) -> None:
    """Those who can write to the database, or read a backup, have digests that only holders of the token can make."""
    async with two_servers(store) as (sessions, _):
        place = sessions._place
        assert place is not None
        cookie, ticket = await sessions.begin(FIREFOX), await sessions.ticket("/")
        document = await place.read(lately=False)
        assert document is not None and cookie.encode() not in document and ticket.encode() not in document
        kept = json.loads(document)
        guesses = [sessions.name, f"name {sessions.name}", kept["owner"], kept["sessions"][0]["digest"], "guess", ""]
        digests = [kept["owner"], kept["tickets"][0]["digest"], hashlib.sha256(b"guess").hexdigest(), "guess", ""]
        kept["sessions"] += [kept["sessions"][0] | {"id": f"id{each}", "digest": each} for each in digests]
        assert await place.replace(document, json.dumps(kept).encode())
        assert len((await fresh(sessions)).all()) == 6
        assert [sessions.find(guess) for guess in guesses] == [None] * len(guesses)


async def test_K9_a_pipe_in_place_of_the_file_does_not_hold_the_server_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sessions", 0o600)
    await Sessions(TOKEN, SessionFile(tmp_path / "sessions")).refresh()


async def test_K9_without_its_file_no_session_is_left(tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    one, two = Sessions(TOKEN, SessionFile(file)), Sessions(TOKEN, SessionFile(file))
    assert await one.begin(FIREFOX) and (await fresh(two)).all()
    file.unlink()
    assert (await fresh(one)).all() == [] and (await fresh(two)).all() == [] and one.name == two.name


async def test_K9_owners_with_other_tokens_on_one_store_do_not_disturb_each_other(postgres: str) -> None:
    store = PostgresStore(postgres)
    await store.open(lambda _: None)
    mine, theirs = [Sessions(each, place_of(store, each)) for each in (TOKEN, f"{TOKEN}2")]
    my_cookie, their_cookie = await mine.begin(FIREFOX), await theirs.begin(FIREFOX)
    assert mine.name != theirs.name and TOKEN not in "".join(await store.browser_owners())
    assert (await fresh(mine)).find(their_cookie) is None and (await fresh(theirs)).find(my_cookie) is None
    await theirs.end()
    assert (await fresh(mine)).find(my_cookie) is not None
    assert await store.keep_browser_sessions("later", None, b"{}", time.time() + LASTS_SECS + 60)
    assert await store.browser_owners() == ["later"], "those that have expired are deleted"
    await store.close()


async def test_K9_sessions_do_not_depend_on_the_secret_of_keys(store: str) -> None:
    async with two_servers(store) as (one, two), AsyncExitStack() as stack:
        cookie = await one.begin(FIREFOX)
        written = asyncio.get_running_loop().create_future()
        rotated = SecretAdded(*new_secret(), at=time.time())
        (await opened_store(stack, store)).commit((rotated,), written.set_result, written.set_exception)
        await written
        assert (await fresh(one)).find(cookie) and (await fresh(two)).find(cookie)


async def test_K9_a_restored_copy_of_the_store_has_no_sessions(postgres: str, tmp_path: Path) -> None:
    store = PostgresStore(postgres)
    await store.open(lambda _: None)
    await Sessions(TOKEN, place_of(store, TOKEN)).begin(FIREFOX)
    await store.close()
    await asyncio.to_thread(store.housekeeping().backup, tmp_path / "copy", force=False)
    await asyncio.to_thread(store.housekeeping().restore, tmp_path / "copy", force=True)
    restored = PostgresStore(postgres)
    await restored.open(lambda _: None)
    assert await restored.browser_owners() == []
    await restored.close()


async def test_K9_the_hundredth_and_first_session_ends_the_one_not_used_for_longest(tmp_path: Path) -> None:
    clock = Clock()
    sessions = Sessions(TOKEN, SessionFile(tmp_path / "sessions"), now=clock)
    cookies = []
    for _ in range(101):
        clock.time += 1
        cookies.append(await sessions.begin(FIREFOX))
    assert sessions.find(cookies[0]) is None and sessions.find(cookies[1]) is not None
    assert len(sessions.all()) == 100


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff", b'{"name": "x"}', b"[" * 100_000])
async def test_K9_a_damaged_file_ends_sessions_at_the_next_start_only(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "sessions"
    sessions = Sessions(TOKEN, SessionFile(file))
    cookie = await sessions.begin(FIREFOX)
    file.write_bytes(damage)
    assert (await fresh(sessions)).find(cookie) is not None
    assert (await fresh(Sessions(TOKEN, SessionFile(file)))).find(cookie) is None
    file.chmod(0o644)
    assert (await fresh(Sessions(TOKEN, SessionFile(file)))).all() == [], "others could have read the name"
    assert file.stat().st_mode & 0o077 == 0


async def test_K9_where_nothing_can_be_written_sessions_last_as_long_as_the_server(tmp_path: Path) -> None:
    sessions = Sessions(TOKEN, SessionFile(tmp_path / "missing" / "sessions"))
    name, cookie = (await fresh(sessions)).name, await sessions.begin(FIREFOX)
    assert (await fresh(sessions)).find(cookie) is not None and sessions.name == name and len(sessions.all()) == 1
    with pytest.raises(KeepholdError, match="until the server restarts"):
        await sessions.end()
    assert (await fresh(sessions)).find(cookie) is None and sessions.name != name
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    linked = Sessions(TOKEN, SessionFile(tmp_path / "link"))
    assert linked.find(await linked.begin(FIREFOX)) is not None and not (tmp_path / "victim").exists()


async def test_K9_a_server_does_not_wait_long_for_a_process_that_holds_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sessions"
    server = Sessions(TOKEN, SessionFile(file))
    kept = await server.begin(FIREFOX)
    with file.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(sessions_module, "_LOCK_TRIES", 3)
        assert server.find(await server.begin(FIREFOX)) is not None
        monkeypatch.setattr(sessions_module, "_LOCK_TRIES", 1_000_000)
        ending = asyncio.create_task(Sessions(place=SessionFile(file)).end())
        await asyncio.sleep(0)
        fcntl.flock(held, fcntl.LOCK_UN)
        assert len(await ending) == 1, "`keephold logout` waits"
    assert (await fresh(server)).find(kept) is None


async def test_K9_many_servers_at_once_lose_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sessions"
    for tries in ("_TRIES", "_LOCK_TRIES"):
        monkeypatch.setattr(sessions_module, tries, 1_000_000)  # no thread may give up on a busy machine

    async def begin() -> list[str]:
        server = Sessions(TOKEN, SessionFile(file))
        return [await server.begin(FIREFOX) for _ in range(5)]

    cookies = await asyncio.gather(*(asyncio.to_thread(lambda: asyncio.run(begin())) for _ in range(3)))
    kept = await fresh(Sessions(TOKEN, SessionFile(file)))
    assert all(kept.find(cookie) for each in cookies for cookie in each)
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
