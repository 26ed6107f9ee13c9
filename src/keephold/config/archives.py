"""The archives that a configuration names: of all handles, and of wait handles alone (W8)."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from keephold.config.model import Config
from keephold.store.archive import Archive
from keephold.store.base import Record
from keephold.tools.waiting.cleanup import WaitArchive


def archive_directory(config: Config) -> Path | None:
    """Return the directory of `[store] archive`; None: there is none."""
    named = config.store.archive
    return None if named is None else config.root / Path(named).expanduser()


def archive_of(config: Config) -> Callable[[Sequence[Record]], Awaitable[None]] | None:
    """Return what archives records before they are deleted; None: nothing does."""
    places, directory, file = config.archive_places, archive_directory(config), config.wait_handles.archive
    archives: list[Archive | WaitArchive] = []
    if directory is not None:
        archives.append(Archive(directory, places))
    if file is not None:
        archives.append(WaitArchive(config.root / Path(file).expanduser(), places))

    async def archive(records: Sequence[Record]) -> None:
        for each in archives:
            await each(records)

    return archive if archives else None
