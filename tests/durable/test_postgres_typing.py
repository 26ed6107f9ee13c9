"""A user types into a terminal that another process on the same machine runs, with the store in PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.durable.test_typing_elsewhere import shows
from tests.patience import PATIENCE
from tests.turn.calls import spawn

from keephold import Runtime
from keephold.config import load_config
from keephold.control.stored_output import talking
from keephold.store.base import Record
from keephold.store.postgres import presence
from keephold.store.postgres.address import address
from keephold.store.postgres.connecting import SQL, session
from keephold.store.postgres.store import ReadOnlyPostgres
from keephold.turn import attach_protocol as frames
from keephold.turn.attach_protocol import Want

CONFIG = """
[conversation.tools.shell]
source = "terminal"
description = "A shell."
command = ["sh"]
run = "unattended"
spawn = { settle_ms = 60000, settle_max_ms = 60000 }
"""


@asynccontextmanager
async def running(directory: Path, url: str) -> AsyncIterator[tuple[Record, ReadOnlyPostgres]]:
    """A process that runs a terminal, and the store as the command of another one sees it."""
    (directory / "keephold.toml").write_text(CONFIG)
    async with Runtime(config=load_config(directory / "keephold.toml"), store=url) as rt, rt.turn("main") as turn:
        await turn.run([spawn("shell", "s")])
        (record,) = await rt.registry.store.handles()
        store = ReadOnlyPostgres(url)
        await store.open(lambda _: None)
        try:
            yield record, store
        finally:
            await store.close()


async def test_M3_a_user_types_into_a_terminal_of_another_process(tmp_path: Path, postgres: str) -> None:
    async with running(tmp_path, postgres) as (record, store):
        async with talking(store, record, Want(uid=record.uid, want="attach", rows=20, cols=60)) as talk:
            talk.send(frames.INPUT, b"echo $((6 * 7))\n")
            await shows(talk, b"42")
        async with talking(store, record, Want(uid=record.uid, want="send", input="echo $((6 * 9))\n")) as talk:
            async with asyncio.timeout(PATIENCE):
                while (received := await talk.receive())[0] != frames.REPLY:
                    pass
            assert isinstance(received[1], bytes) and b"54" in received[1]


async def test_E6_the_sockets_of_a_dead_process_are_removed(postgres: str) -> None:
    async with Runtime(store=postgres) as rt:
        own = rt.registry.store
        path = Path(str(getattr(own, "stream")(own.owner)))  # noqa: B009 (not every store has it)
        assert path.is_socket()
        dead = path.with_name("dead.s")
        dead.touch()
        place = presence.here()._replace(began="1", bell=str(dead).removesuffix(".s"))
        found = await session(address(postgres))
        await found.rows(SQL["add_owner"], ("00000000dead", 1, str(place)))
        await found.close()
        await own.owners()
        assert not dead.exists()
    assert not path.exists()
