"""Which processes have the store open (E6), and how they hear of each other.

Each process holds a session advisory lock on a connection of its own, which the server releases when the connection
ends. A lock that is free does not prove that its process is dead: the server may have been restarted, or the connection
was cut. A live process takes its lock again at once. So a process counts as dead when two looks, `GRACE` seconds apart,
found its lock free, or when it ran on this machine and is gone here. Then it is removed under its lock: if it lives
after all, it finds that it was removed, and writes nothing any more.

The looks are the heartbeat of all connections. The kernel does not notice a server that hangs, or one behind a proxy
that still answers. If a look brings no answer in time, or finds that the server has become a standby, the connections
that write, delete and read are given up, too.

`alive` must answer at once, so the answers are kept and renewed by every look. The id of a process begins with the
number of its registration: one that a look did not find is dead, unless it has registered since.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import asyncpg
import msgspec

from keephold.errors import KeepholdError
from keephold.listeners import Listeners
from keephold.platforms import machine
from keephold.private_file import STREAM, remove_sockets, socket_directory
from keephold.store.base import Heard
from keephold.store.housekeeping import pid_and_command
from keephold.store.postgres import connecting
from keephold.store.postgres.address import Address
from keephold.store.postgres.connecting import SQL, Session, sentence, session, whose
from keephold.store.sql.codec import encode

SWEEP_SECS = 5.0
"""Seconds between two looks."""
GRACE = 5.0
"""Seconds for which a lock must be free."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between attempts to connect."""
_NUMBER = 8
"""Digits of an id that number its registration."""

_LEFT: set[str] = set()
"""Ids that this process had, and gave up."""

_told = msgspec.json.Decoder(list[str]).decode


class Place(NamedTuple):
    """Where a process runs, and since when: unique until the machine is started again."""

    boot: str
    """Empty: the machine does not name it, so that nobody can say that a process is on the same machine."""
    namespace: str
    pid: str
    began: str
    bell: str = ""
    """Where its sockets are, without a suffix; they can be reached on its machine."""

    def __str__(self) -> str:
        return " ".join(self)

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine, in our process namespace."""
        return bool(self.boot) and self[:2] == here()[:2]

    def is_gone(self) -> bool:
        """Whether the process ran on this machine and has ended."""
        with contextlib.suppress(ValueError):
            return self.is_here and machine.runs(int(self.pid), int(self.began)) is False
        return False

    def command(self) -> str | None:
        """Return pid and command of the process; None if it runs elsewhere."""
        with contextlib.suppress(ValueError):
            pid = int(self.pid)
            return pid_and_command(pid) if self.boot and here(pid)[:4] == self[:4] else None
        return None


def here(pid: int = 0) -> Place:
    """Return the place of a process of this machine, or of this one, without its bell."""
    pid = pid or os.getpid()
    return Place(machine.boot(), f"pid:[{machine.namespace()}]", str(pid), str(machine.started(pid)))


def place_of(text: str) -> Place:
    """Read the place of a row."""
    parts = text.split(" ", 4)
    return Place(*parts) if len(parts) >= 4 else Place("", "", "", "")


class Table:
    """The findings of the last look at the processes of a store."""

    def __init__(self) -> None:
        self.owner = ""
        self._present: set[str] = set()
        """The processes that have the store open and are alive."""
        self._places: dict[str, Place] = {}
        self._last = 0
        """The number of the last registration that the look could see."""
        self._free: dict[str, float] = {}
        """Since when the lock of a process was found free at every look."""
        self.surprised: Callable[[], None] = lambda: None
        """Called for a process that the last look could not know."""

    def alive(self, owner: str) -> bool:
        if owner in _LEFT:
            return False
        if owner == self.owner or owner in self._present:
            return True
        try:
            number = int(owner[:_NUMBER], 16)
        except ValueError:
            return False
        if number > self._last:
            self.surprised()
            return True
        return False

    def forget(self) -> None:
        """Begin to count again: the server may have been restarted, and every lock was free."""
        self._free.clear()

    def stream(self, owner: str) -> str | None:
        """Return where a process of this machine listens for streams; None if it is elsewhere, or unknown."""
        place = self._places.get(owner)
        return place.bell + STREAM if place is not None and place.bell and place.is_here else None

    async def look(self, found: Session, grace: float) -> dict[str, Place]:
        """Look at all processes. Returns where those ran that seem to be dead. They are alive until `bury`."""
        ((last,),) = await found.rows(SQL["last_owner"], ())  # before the others: those who come later are unknown
        rows = await found.rows(SQL["present"], ())
        now = time.monotonic()
        free, dead = {}, {}
        self._places = {owner: place_of(place) for owner, place, _ in rows}
        for owner, _, held in rows:
            if held or owner == self.owner:
                continue
            place, free[owner] = self._places[owner], self._free.get(owner, now)
            if now - free[owner] >= grace or place.is_gone() or owner in _LEFT:
                dead[owner] = place
        self._present, self._last, self._free = set(self._places), last, free
        return dead

    def bury(self, owner: str) -> None:
        """Note that a process is dead: nothing that it writes counts any more."""
        self._present.discard(owner)


def _bell(owner: str) -> str:
    """Return where the sockets of this process are; nothing if it may make none."""
    with contextlib.suppress(KeepholdError, OSError):
        return str(socket_directory(owner + STREAM) / owner) if machine.has_sockets else ""
    return ""


class Presence:
    """This process in the store: its lock, its ear, and its looks at the others."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.owner = ""
        self.held = False
        """Whether the lock is held, as far as is known."""
        self.displaced = False
        """Whether other processes took this one for dead and removed it."""
        self.trouble: str | None = None
        """Why the server does not answer, if it does not."""
        self.silent: Callable[[], None] = lambda: None
        """Called when the server has not answered in time, or has become a standby."""
        self.table = Table()
        self.ear = ""
        """The channel on which this process hears whispers. Its name is secret: any user of the database may listen to
        a channel that they can name. Each connection has another one, so a lost one is not listened to again."""
        self.on_whisper: Listeners[[str | None]] = Listeners()
        self._lock = secrets.randbits(63)
        self._session: Session | None = None
        self._who: tuple[int, Any] | None = None
        self._looking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._closing = False
        self._running: asyncio.Task[None] | None = None
        self._heard: Heard = lambda _: None

    def alive(self, owner: str) -> bool:
        return self.table.alive(owner)

    async def enter(self, heard: Heard) -> None:
        """Register this process, take its lock, and listen. Raises an error of the server."""
        self._heard = heard
        found = await self._connect()
        try:
            async with found.connection.transaction():
                ((number,),) = await found.rows(SQL["next_owner"], ())
                self.owner = self.table.owner = f"{number:0{_NUMBER}x}{secrets.token_hex(4)}"
                place = here()._replace(bell=_bell(self.owner))
                await found.rows(SQL["add_owner"], (self.owner, self._lock, str(place)))
            self.held = True
            await self.look()
        except BaseException:
            found.connection.terminate()
            raise
        self.table.surprised = self._wake.set
        self._running = asyncio.get_running_loop().create_task(self._run(), name="keephold-presence")

    async def leave(self) -> None:
        """Remove this process: from now on others see it as dead."""
        self._closing = True
        self._wake.set()
        if self._running is not None:
            await asyncio.wait([self._running])
        found = self._session
        if found is not None:
            with contextlib.suppress(Exception):
                if not found.closed and not self.displaced:
                    async with asyncio.timeout(connecting.GONE_SECS):
                        await self._remove(found, self.owner)
            _LEFT.add(self.owner)
            await found.close()

    async def whisper(self, ear: str, message: str) -> None:
        """Send a message. The server keeps it in no table. Raises an error of the server."""
        async with self._looking:
            if self._session is None or self._session.closed:
                raise ConnectionError("the connection is lost")
            await self._session.rows(SQL["tell"], (ear, message))

    async def look(self) -> None:
        """Renew the answers of `alive`, and remove dead processes. Raises an error of the server."""
        async with self._looking:
            found = self._session
            if found is None or found.closed:
                return
            for owner, place in (await self.table.look(found, GRACE)).items():
                async with found.connection.transaction():
                    if not await found.rows(SQL["remove_dead"], (owner,)):
                        continue  # it is back, or another process removes it just now
                    await self._remove_rows(found, owner)
                self.table.bury(owner)
                if place.bell and place.is_gone():
                    remove_sockets(place.bell)

    async def _remove(self, found: Session, owner: str) -> None:
        async with self._looking, found.connection.transaction():
            await found.rows(SQL["remove_owner"], (owner,))
            await self._remove_rows(found, owner)
            await found.rows(SQL["tell"], (self.address.channel, encode([owner]).decode()))

    async def _remove_rows(self, found: Session, owner: str) -> None:
        for query in ("remove_requests", "remove_posts"):
            await found.rows(SQL[query], (owner,))

    async def _run(self) -> None:
        """Look now and then; connect again when the connection is lost."""
        pause = FIRST_PAUSE
        while not self._closing:
            self._wake.clear()  # before the look: it may not find the process that surprises someone meanwhile
            try:
                async with asyncio.timeout(connecting.GONE_SECS):
                    if self._session is None or self._session.closed:
                        self.held = False
                        await self._return()
                    await self._check_primary()
                    await self.look()
                pause, self.trouble = FIRST_PAUSE, None
            except Exception as error:
                self.trouble = sentence(self.address, error)
                if self._session is not None:
                    self._session.connection.terminate()
                if isinstance(error, (TimeoutError, asyncpg.ReadOnlySQLTransactionError)):
                    self.silent()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if not self._closing and self._session is not None and not self._session.closed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), SWEEP_SECS)

    async def _check_primary(self) -> None:
        """Raise an error if the server has become a standby and has kept this connection. Its locks protect nothing."""
        async with self._looking:
            assert self._session is not None
            ((read_only,),) = await self._session.rows("SELECT current_setting('transaction_read_only')", ())
        if read_only == "on":
            raise asyncpg.ReadOnlySQLTransactionError("it no longer takes writes")

    async def _return(self) -> None:
        """Connect again, and take the lock before anything else. All may have changed meanwhile."""
        self.table.forget()
        found = await self._connect()
        async with self._looking:
            self.displaced = not await found.rows(SQL["registered"], (self.owner,))
            self.held = True  # not before: the writer waits for it, and must know that it was displaced
        self._heard(None)

    async def _connect(self) -> Session:
        found = await session(self.address)
        try:
            if self._who is not None:  # the server may still keep the lost session, and the lock with it
                await found.rows(SQL["end_session"], self._who)
            if not (await found.rows(SQL["take_lock"], (self._lock,)))[0][0]:
                raise ConnectionError("the server has not ended the lost session yet")
            self._who = await whose(found)
            await found.connection.add_listener(self.address.channel, self._listen)
            ear = f"keephold_{secrets.token_hex(16)}"
            await found.connection.add_listener(ear, lambda *told: self.on_whisper(told[-1]))
            found.connection.add_termination_listener(lambda _: self._lost(ear))
        except BaseException:
            found.connection.terminate()
            raise
        self._session, self.ear = found, ear
        return found

    def _lost(self, ear: str) -> None:
        if self.ear == ear:
            self.ear = ""
            self.on_whisper(None)
        self._wake.set()

    def _listen(self, _: object, pid: int, channel: str, message: str) -> None:
        try:
            sender, *changed = _told(message)
        except msgspec.MsgspecError:  # of somebody else
            return
        if sender == self.owner:
            return
        if changed:
            self._heard(frozenset(changed))
        else:
            self._wake.set()
            self._heard(None)
