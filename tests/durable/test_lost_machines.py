"""A machine whose network is lost keeps its calls for about 15 s (E6): both sides of a connection notice by then."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.durable.lives import ok, stopped
from tests.durable.program import tools
from tests.durable.test_postgres_outage import commit, opened
from tests.patience import PATIENCE, until
from tests.postgres import QUICK, Server, own_server
from tests.soak import soak

from keephold import Runtime
from keephold.outcomes import Ok
from keephold.store.base import Registered
from keephold.store.postgres.address import address
from keephold.store.postgres.connecting import GONE_SECS, SQL, Session, session
from keephold.testing.conformance.suite import record

ROOT = Path(__file__).parents[2]
SLACK = 10.0
"""Seconds that a busy machine may add."""


@pytest.mark.linux("the options of sockets have other names elsewhere")
async def test_E6_both_sides_of_each_connection_notice_a_dead_network_after_15_s(postgres: str) -> None:
    async with opened(postgres) as store:
        await commit(store, Registered(record(1)))
        await store.handles()
        assert store._writer is not None and store._readers is not None
        async with store._session() as own:
            for found in (store._presence._session, store._writer._session, *store._readers._idle, own):
                assert found is not None
                await _is_watched(found)


async def _is_watched(found: Session) -> None:
    raw, tcp = found.socket._raw, socket.IPPROTO_TCP
    assert raw is not None
    assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle, every, count = (raw.getsockopt(tcp, getattr(socket, f"TCP_KEEP{name}")) for name in ("IDLE", "INTVL", "CNT"))
    assert idle + every * count == GONE_SECS == 15
    assert raw.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 1000 * GONE_SECS
    names = ("keepalives_idle", "keepalives_interval", "keepalives_count", "user_timeout")
    ((idle, every, count, timeout),) = await found.rows(
        "SELECT " + ", ".join(f"(SELECT setting FROM pg_settings WHERE name = 'tcp_{name}')" for name in names), ()
    )
    assert int(idle) + int(every) * int(count) == GONE_SECS and int(timeout) == 1000 * GONE_SECS


class Machine:
    """A network namespace that reaches this one by a cable."""

    def __init__(self) -> None:
        self.name, number = f"keephold-{os.getpid()}", os.getpid() % 250
        self._cable, self._end = f"kh{os.getpid()}a", f"kh{os.getpid()}b"
        self.network, self.here, self._there = (f"10.213.{number}.{each}" for each in ("0/24", "1", "2"))

    def plug(self) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", self._end, "netns", self.name)
        _ip("address", "add", f"{self.here}/24", "dev", self._cable)
        _ip("link", "set", self._cable, "up")
        _ip("-n", self.name, "address", "add", f"{self._there}/24", "dev", self._end)
        _ip("-n", self.name, "link", "set", self._end, "up")

    def cut(self) -> None:
        """Drop all packets, and tell neither side: they are sent to an address that no network card has."""
        nobody = ("lladdr", "02:00:00:00:00:99", "nud", "permanent")
        _ip("neighbour", "replace", self._there, *nobody, "dev", self._cable)
        _ip("-n", self.name, "neighbour", "replace", self.here, *nobody, "dev", self._end)

    def unplug(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "delete", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@asynccontextmanager
async def a_machine(server: Server, directory: Path) -> AsyncIterator[Machine]:
    """A machine with a runtime that runs the call `deploy`, which waits for an event."""
    machine, process = Machine(), None
    try:
        machine.plug()
        with (server.directory / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {machine.network} trust\n")
        by_hand = await session(address(server.url))
        await by_hand.run("SELECT pg_reload_conf()")
        await by_hand.close()
        url = server.url.replace("127.0.0.1", machine.here)
        process = await asyncio.create_subprocess_exec(
            "ip", "netns", "exec", machine.name,
            sys.executable, "-m", "tests.durable.program", url, str(directory), "kept", "deploy",
            cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"ready\n"
        yield machine
    finally:
        if process is not None:
            process.kill()
            await process.wait()
        machine.unplug()


@soak
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("ip") is None, reason="only root makes networks, by `ip`")
async def test_E6_the_call_of_a_machine_whose_packets_are_dropped_is_taken_over(tmp_path: Path) -> None:
    with own_server(*QUICK, "listen_addresses=*") as server:
        async with a_machine(server, tmp_path) as machine, Runtime(tools(tmp_path), store=server.url) as rt:
            (lost,) = await rt.registry.store.owners()
            looking = await session(address(server.url))

            async def is_free() -> bool:
                return not any(held for owner, _, held in await looking.rows(SQL["present"], ()) if owner == lost)

            assert not await is_free()
            machine.cut()
            at = time.monotonic()
            await until(is_free)
            free_after = time.monotonic() - at
            created = (tmp_path / "deploy").read_text().splitlines()
            await until(lambda: len((tmp_path / "deploy").read_text().splitlines()) == 2)
            taken_after = time.monotonic() - at
            print(f"free after {free_after:.1f} s, taken over after {taken_after:.1f} s")
            assert 5 < free_after < GONE_SECS + SLACK
            assert taken_after < free_after + 10 + SLACK, "two looks"
            assert str(await rt.resolve(created[0], ok("now"))) == "accepted"
            assert (await stopped(rt, "deploy")).outcome == Ok(["created", "now", 2])
            assert (tmp_path / "created").read_text().splitlines() == ["attempt 1"]
            await looking.close()
