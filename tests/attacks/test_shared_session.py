"""Those who have a cookie that no server gave them, or that was taken back: at any server of the store (K9)."""

import asyncio
import base64
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.serve.application import TOKEN
from tests.serve.test_door import asked, cookie_of, guard, logged_in
from tests.serve.test_sessions import FIREFOX, Clock, opened_store, two_servers

from keephold.errors import KeepholdError
from keephold.serve.sessions import LASTS_SECS, SessionRow, Sessions, place_of


async def opens(guarded: Any, mine: dict[str, str]) -> bool:
    """Whether these headers read and change something."""
    read = await asked(guarded, "/handles", mine)
    wrote = await asked(guarded, "/do/x", {**mine, "Origin": f"http://{mine['Host']}"}, method="POST")
    assert (read.status_code == 200) is (wrote.status_code == 200)
    return read.status_code == 200


async def test_K9_a_cookie_that_no_server_gave_opens_none(postgres: str) -> None:
    async with two_servers(postgres) as (one, two):
        doors = guard(TOKEN, sessions=one), guard(TOKEN, sessions=two)
        mine = await logged_in(doors[0])
        value = mine["Cookie"].partition("=")[2]
        (session,) = one.all()
        ticket = await one.ticket("/")
        forged = [
            "", value[:-1], value[1:], f"{value}x", value.swapcase(), value[::-1], f'"{value}"', f"{value}%00",
            session.id, session.digest, ticket, one.name, TOKEN, base64.urlsafe_b64encode(bytes(32)).decode(),
        ]  # fmt: skip
        for guarded in doors:
            assert await opens(guarded, mine)
            for each in forged:
                assert not await opens(guarded, {**mine, "Cookie": f"keephold={each}"}), each
            for name in ("Keephold", "keephold_", "__Host-keephold", "keephold_8420"):
                assert not await opens(guarded, {**mine, "Cookie": f"{name}={value}"}), name
            other_site = {**mine, "Origin": "http://evil.example"}
            assert (await asked(guarded, "/do/x", other_site, method="POST")).status_code == 403
            assert (await asked(guarded, f"/login?ticket={value}", {"Host": mine["Host"]})).status_code == 401


async def test_K9_a_session_that_was_ended_at_one_server_is_replayed_in_vain_at_all(postgres: str) -> None:
    async with two_servers(postgres) as (one, two):
        doors = guard(TOKEN, sessions=one), guard(TOKEN, sessions=two)
        mine, other = await logged_in(doors[0]), await logged_in(doors[1])
        found = two.find(mine["Cookie"].partition("=")[2])
        assert found is not None and await two.end(found.id)
        assert [await opens(guarded, mine) for guarded in doors] == [False, False]
        assert [await opens(guarded, other) for guarded in doors] == [True, True]
        await one.end()
        assert [await opens(guarded, other) for guarded in doors] == [False, False]
        renamed = {**other, "Host": f"{one.name}.localhost"}
        assert [await opens(guarded, renamed) for guarded in doors] == [False, False]
    async with two_servers(postgres) as (later, _):
        assert not await opens(guard(TOKEN, sessions=later), renamed), "nor after a restart"


async def test_K9_a_session_expires_at_all_servers_by_the_use_that_any_of_them_saw(postgres: str) -> None:
    clock = Clock()
    async with two_servers(postgres, clock) as (one, two):
        doors = guard(TOKEN, sessions=one), guard(TOKEN, sessions=two)
        mine = await logged_in(doors[0])
        clock.time += LASTS_SECS - 1
        assert await opens(doors[1], mine)
        clock.time += LASTS_SECS - 1
        assert await opens(doors[0], mine)
        clock.time += LASTS_SECS
        assert [await opens(guarded, mine) for guarded in doors] == [False, False]


async def test_K9_a_session_of_another_owner_or_of_another_store_is_worthless(postgres: str, tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path}/store.db"
    async with two_servers(postgres) as (here, _), two_servers(elsewhere) as (there, _), AsyncExitStack() as stack:
        mine = await logged_in(guard(TOKEN, sessions=here))
        changed = f"{TOKEN}2"
        other = Sessions(changed, place_of(await opened_store(stack, postgres), changed))
        for guarded, theirs in ((guard(TOKEN, sessions=there), there), (guard(changed, sessions=other), other)):
            for host in (mine["Host"], f"{(await refreshed(theirs)).name}.localhost"):
                assert not await opens(guarded, {**mine, "Host": host})
        assert await opens(guard(TOKEN, sessions=here), mine), "it is not disturbed"


async def refreshed(sessions: Sessions) -> Sessions:
    await sessions.refresh()
    return sessions


async def test_K9_a_public_host_has_a_cookie_for_each_of_its_ports(postgres: str) -> None:
    """Behind two load balancers of one host are the dashboards of two stores: neither logs the other one out."""
    hosts = ["127.0.0.1", "mine.example"]
    async with two_servers(postgres) as (one, two):
        for port in ("", ":8443"):
            here = {"Host": f"mine.example{port}"}
            doors = [guard(TOKEN, None, hosts, url=f"https://mine.example{port}", sessions=each) for each in (one, two)]
            answered = await asked(doors[0], f"/?token={TOKEN}", here)
            mine = {**here, "Cookie": cookie_of(answered)}
            assert "; Secure" in answered.headers["set-cookie"]
            assert [(await asked(guarded, "/", mine)).text for guarded in doors] == ["inside", "inside"]
            swapped = {**mine, "Host": f"mine.example{':8443' if not port else ''}"}
            assert (await asked(doors[1], "/", swapped)).status_code == 401


class Outage:
    """A row of a store that cannot be reached."""

    async def read(self, *, lately: bool) -> bytes | None:
        raise KeepholdError("the store cannot be read at present", code="store_unavailable")

    async def replace(self, was: bytes | None, document: bytes) -> bool:
        raise KeepholdError("the store cannot be written at present", code="store_unavailable")


async def test_K9_a_server_that_cannot_know_whether_a_session_has_ended_refuses_it(postgres: str) -> None:
    async with two_servers(postgres) as (one, _):
        guarded = guard(TOKEN, sessions=one)
        mine = await logged_in(guarded)
        place, one._place = one._place, Outage()
        for path in ("/handles", f"/?token={TOKEN}", "/login?ticket=x"):
            answered = await asked(guarded, path, mine)
            assert answered.status_code == 503 and json.loads(answered.text)["error"]["code"] == "store_unavailable"
            assert "set-cookie" not in answered.headers
        assert (await asked(guarded, "/static/style.css", mine)).text == "inside"
        bearer = await asked(guarded, "/handles", {"Authorization": f"Bearer {TOKEN}"})
        assert bearer.text == "inside", "the token needs no session"
        one._place = place
        assert await opens(guarded, mine)


async def test_K9_forged_cookies_of_many_clients_write_nothing(postgres: str) -> None:
    async with two_servers(postgres) as (one, two):
        await one.begin(FIREFOX)
        place = one._place
        assert isinstance(place, SessionRow)
        before = await place.read(lately=False)
        guarded, host = guard(TOKEN, sessions=two), f"{one.name}.localhost"
        paths = ["/", "/login?ticket=forged", "/?token=forged"]
        await asyncio.gather(
            *(asked(guarded, path, {"Host": host, "Cookie": f"keephold={n}"}) for n in range(10) for path in paths)
        )
        assert await place.read(lately=False) == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": "", "owner": ""}', b"null"])
async def test_K9_a_row_that_somebody_has_damaged_lets_nobody_in(postgres: str, content: bytes) -> None:
    async with two_servers(postgres) as (one, two):
        mine = await logged_in(guard(TOKEN, sessions=one))
        assert one._place is not None
        document = await one._place.read(lately=False)
        assert await one._place.replace(document, content)
        assert not await opens(guard(TOKEN, sessions=two), {**mine, "Host": f"{(await refreshed(two)).name}.localhost"})
