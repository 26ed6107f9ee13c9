"""Everything that a store has open, taken in order and let go in the opposite order."""

from contextlib import ExitStack
from pathlib import Path

import apsw

from keephold.store.sqlite import opening
from keephold.store.sqlite.bell import STREAM, Bell
from keephold.store.sqlite.owners import Owners
from keephold.store.sqlite.sql import SQL
from keephold.store.sqlite.turnstile import Turnstile


class StoreFiles:
    """The files of a store. Making one and closing it may wait for other processes and for the disk."""

    def __init__(self, path: Path, output: Path) -> None:
        self.path = path
        with ExitStack() as taken:
            opening.claim(path)
            taken.callback(opening.disclaim, path)
            opening.check_version(path)
            with opening.explained(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                self.turnstile = Turnstile(path)
                taken.callback(self.turnstile.close)
                output.mkdir(mode=0o700, exist_ok=True)
                self.owners = Owners(path.with_name(f"{path.name}-owners"))
                self.bell = Bell(path, self.owners)
                taken.callback(self.bell.close)
                taken.callback(self.owners.leave)
                self.owners.enter(self.bell.path)
                with self.turnstile:
                    self.connection = opening.prepare(path)
                    taken.callback(lambda: self.connection.close(True))
                    self._register(self.connection)
                self.reading = opening.reader(path)
                taken.callback(lambda: self.reading.close(True))
            self._taken = taken.pop_all()

    def _register(self, connection: apsw.Connection) -> None:
        """Enter us, and clean up after the dead."""
        swept = self.owners.sweep()
        connection.execute("BEGIN IMMEDIATE")
        dead = set(swept) | {str(owner) for (owner,) in connection.execute(SQL["counted_owners"])}
        dead = {owner for owner in dead if not self.owners.alive(owner)}
        for owner in dead:
            connection.execute(SQL["remove_owner"], (owner,))
            connection.execute(SQL["remove_requests"], (owner,))
        connection.execute(SQL["add_owner"], (self.owners.me,))
        connection.execute("COMMIT")
        for bell in filter(None, swept.values()):
            Path(bell).unlink(missing_ok=True)
            Path(bell + STREAM).unlink(missing_ok=True)

    def reconnect(self) -> None:
        """Put a new connection in the place of the one that failed."""
        self.connection.close(True)
        self.connection = opening.connect(self.path)

    def close(self) -> None:
        """Call when nobody uses the connections any more."""
        self._taken.close()
