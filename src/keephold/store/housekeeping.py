"""Work of an operator on a whole store: look at it, check it, copy it, restore a copy, upgrade it.

The methods block, need no runtime and no event loop, and work while other processes use the store, unless they say
otherwise.
"""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from keephold.errors import KeepholdError
from keephold.platforms import machine
from keephold.store.base import Collected, Store


class Owner(msgspec.Struct, frozen=True):
    """A process that has the store open."""

    id: str
    process: str | None
    """Its pid and command, as far as is known."""


def pid_and_command(pid: int) -> str:
    """Describe a process of this machine."""
    said = " ".join(machine.command_of(pid)).strip()
    return f"{pid} (`{''.join(each if each.isprintable() else ' ' for each in said)[:80]}`)"


class Secret(msgspec.Struct, frozen=True):
    """A secret by which keys are signed, without itself."""

    id: str
    at: float
    open_keys: int
    """How many keys that it signed can still be used."""


class StoreInfo(msgspec.Struct, frozen=True):
    """The facts about a store."""

    store: str
    schema: int
    newest_schema: int
    """The schema of this keephold."""
    bytes: int
    free_bytes: int | None
    """Unused space in these bytes; None: PostgreSQL does not say."""
    output_files: int
    output_bytes: int
    rows: dict[str, int]
    """By table."""
    oldest: float | None
    """When the oldest handle was made."""
    newest: float | None
    owners: list[Owner]
    secrets: list[Secret]
    """The oldest first. The last one signs new keys."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that should not be."""

    rule: str
    says: str
    """A sentence: what is wrong, and what to do about it."""


class Backup(msgspec.Struct, frozen=True):
    """A finished copy."""

    file: str
    store: str
    schema: int
    bytes: int
    output_files: int
    problems: list[Problem]
    """Problems of the store, which its copy has, too."""


class Restored(msgspec.Struct, frozen=True):
    """A store that was made from a copy."""

    store: str
    schema: int
    made_at: float
    """When the copy was made."""
    output_files: int


class Migrated(msgspec.Struct, frozen=True):
    """The result of `migrate`."""

    store: str
    was: int
    schema: int
    steps: list[str]
    """A description of each step."""
    backup: str | None
    """None: nothing had to be done."""


class Weight(msgspec.Struct, frozen=True):
    """How much an operation would delete."""

    handles: int
    """Spawned ones."""
    calls: int
    """One-shot calls."""
    row_bytes: int
    """About how much their rows take: results, arguments, journals and short output."""
    output_bytes: int
    """How much their output files take."""


@runtime_checkable
class SupportsWeighing(Store, Protocol):
    """A store that can say what an operation would delete without reading all of it."""

    async def weigh(self, op: Collected) -> Weight:
        """Return how much the operation would delete if its `limit` were infinite."""


@runtime_checkable
class SupportsSole(Store, Protocol):
    """A store that several processes share."""

    def sole(self) -> AbstractAsyncContextManager[bool]:
        """Hold the lock under which one process at a time deletes and archives what is old. False: another has it.

        A store may write deletions beside other commits meanwhile. Then a later commit can be called back first."""


@runtime_checkable
class SupportsVacuum(Store, Protocol):
    """A store with unused space on the disk."""

    async def disk_bytes(self) -> int:
        """Return how many bytes the store takes on the disk, unused space included, without output files."""

    async def vacuum(self) -> None:
        """Return all unused space to the disk. Writers wait meanwhile."""


class Housekeeping(Protocol):
    """The operations. Each raises `KeepholdError` if it cannot be done."""

    def info(self) -> StoreInfo: ...

    def check(self) -> list[Problem]:
        """Return every violation of what must always hold of a store. Change nothing."""

    def backup(self, file: Path, *, force: bool) -> Backup:
        """Write a consistent copy, with the output that it refers to, into one file, and check it. `force`: replace an
        existing file."""

    def restore(self, file: Path, *, force: bool) -> Restored:
        """Make the store from a copy. Refuse if a process has the store open. `force`: replace an existing store."""

    def migrate(self, backup: Path | None) -> Migrated:
        """Upgrade the schema to this keephold's, after a backup to that file, by default beside the store. Refuse if
        a process has the store open."""


@runtime_checkable
class SupportsHousekeeping(Protocol):
    """A store that an operator can look after."""

    def housekeeping(self) -> Housekeeping: ...


def housekeeping_of(store: Store) -> Housekeeping:
    """Return the housekeeping of a store that is not open; raise `KeepholdError` if it has none."""
    if not isinstance(store, SupportsHousekeeping):
        raise KeepholdError(
            f"`keephold store` cannot look after a {type(store).__name__}; name a store in a file by --store",
            code="unsupported_store",
        )
    return store.housekeeping()
