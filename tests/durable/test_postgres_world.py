"""The world around a PostgreSQL store: the time of day is set, the server's disk is full, the server is away."""

import asyncio
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from tests.cutting import proxy
from tests.durable.test_postgres_outage import commit, opened
from tests.patience import until
from tests.postgres import QUICK, own_server
from tests.serve.application import application
from tests.turn.calls import STATEFUL, call, spawn

import keephold
from keephold import Call, KeepholdError, Runtime
from keephold.handles.clock import SystemClock
from keephold.serve import app
from keephold.store.base import Emitted, Journaled, Registered
from keephold.testing.conformance.suite import NOON, record, uid

HOUR = 3600.0


# The time of day


@keephold.tool(actions=STATEFUL, on_crash="replay", timeout_secs=None)
async def nap(call: Call) -> str:
    """Wait a little, between two steps."""

    async def note(given: Any) -> Any:
        return given

    effects = call.durable()
    await effects.run_json("before", 1, note)
    await effects.sleep(0.2)
    await effects.run_json("after", 1, note)
    return "awake"


@keephold.tool(actions=STATEFUL)
async def quick() -> str:
    """Return at once."""
    return "a fresh result"


@pytest.mark.parametrize("set_by", [-HOUR, HOUR])
async def test_E6_no_process_is_lost_and_nothing_expires_when_the_time_of_day_is_set(
    postgres: str, set_by: float
) -> None:
    jump = [0.0]
    clock = SystemClock(lambda: time.time() + jump[0])
    async with (
        Runtime([nap, quick], store=postgres, clock=clock) as rt,
        Runtime([nap, quick], store=postgres) as other,
    ):
        rt.registry.retention = HOUR / 2
        async with rt.turn("main") as turn:
            await turn.run([spawn("quick", "q"), call("await", all=["q"]), spawn("nap", "n")])
            jump[0] = set_by
            began = time.monotonic()
            (reply,) = await turn.run([call("await", all=["n"])])
            assert "awake" in str(reply.result) and time.monotonic() - began < HOUR
        await rt.registry.collect()
        await rt.registry.store.owners()
        await other.registry.store.owners()  # which looks at the processes
        assert other.registry.store.alive(rt.registry.store.owner)
        assert rt.registry.store.alive(other.registry.store.owner)
        assert {each.id for each in await other.handles()} == {"q", "n"}


# A full disk


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A disk of 16 MiB. Only root may make one."""
    directory.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=777", "tmpfs", directory], capture_output=True)
    if made.returncode:
        pytest.skip("may not mount a disk")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


async def test_R4_a_full_disk_of_the_server_is_reported_and_what_must_be_recorded_waits() -> None:
    with own_server(*QUICK) as server, small_disk(server.directory / "disk") as disk:
        await _use(server, disk)
        async with opened(server.url) as store:
            await commit(store, Registered(record(1)))
            (disk / "ballast").write_bytes(bytes(3 << 20))
            with pytest.raises(KeepholdError) as full:
                for number in range(1000):
                    await commit(store, Emitted("p", "t", secrets.token_hex(30_000), NOON + number))
            assert full.value.code == "store_unavailable" and "nothing was written" in full.value.message
            assert "the disk of" in full.value.message and "is full; free some space" in full.value.message
            assert "is full" in str(store.trouble)
            assert (await store.handle(uid(1))) is not None, "it can be read"
            step = Journaled(uid(1), 1, "step", "s", b"d", secrets.token_hex(30_000).encode())
            kept = asyncio.ensure_future(commit(store, step, keep=True))
            with pytest.raises(KeepholdError, match="is full"):
                await commit(store, Emitted("p", "t", secrets.token_hex(30_000), NOON))
            assert not kept.done()
            (disk / "ballast").unlink()
            await kept
            assert [entry.name for entry in await store.journal(uid(1))] == ["s"]
            await until(lambda: store.trouble is None)


async def _use(server: Any, disk: Path) -> None:
    """Have the server make new tables on that disk; its own log stays where it is, so that it does not crash."""
    place = disk / "space"
    place.mkdir()
    place.chmod(0o777)
    if server._user is not None:
        os.chown(place, server._user.pw_uid, server._user.pw_gid)
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
    await connection.execute("ALTER ROLE postgres SET default_tablespace = small")
    await connection.close()


# The server is away


async def test_R4_health_says_that_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_CHECK_SECS", 0.0)
    with own_server(*QUICK) as server:
        async with application([quick], store=server.url) as served, served.client(None) as http:

            async def health() -> dict[str, Any]:
                answered = await http.get("/healthz")
                said = dict(answered.json())
                assert answered.status_code == (200 if said["ok"] else 503)
                return said

            async def is_well() -> bool:
                return await health() == {"ok": True}

            assert await is_well()
            await asyncio.to_thread(server.stop, "immediate")
            assert await health() == {"ok": False, "problem": "the store cannot write"}
            await asyncio.to_thread(server.start)
            await until(is_well)


async def test_R4_health_answers_while_the_server_hangs(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_CHECK_SECS", 0.0)
    monkeypatch.setattr(app, "_ANSWER_SECS", 0.05)
    port = urlsplit(postgres).port
    assert port is not None
    async with proxy(port) as between:
        url = postgres.replace(f":{port}", f":{between.port}")
        async with application([quick], store=url) as served, served.client(None) as http:
            between.silent = True
            answered = await http.get("/healthz")
            assert (answered.status_code, answered.json()["problem"]) == (503, "the store does not answer")
            between.silent = False
            between.cut_all()

            async def is_well() -> bool:
                return bool((await http.get("/healthz")).status_code == 200)

            monkeypatch.setattr(app, "_ANSWER_SECS", 10.0)
            await until(is_well)
