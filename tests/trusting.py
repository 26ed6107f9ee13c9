"""Files that commands find in a directory, trusted as a user would with `keephold trust`."""

import os
from pathlib import Path

from keephold.config.trust import Record


def write_trusted(file: Path, text: str, state: Path | None = None) -> Path:
    """Write a configuration that commands may use; `state` is their XDG_STATE_HOME, by default that of the tests."""
    file.write_text(text)
    return trusted(file, state)


def trusted(file: Path, state: Path | None = None) -> Path:
    """Let the file act as it is now."""
    place = Path(os.path.realpath(file.parent), file.name)
    record = Record()
    if state is not None:
        record.file = state / "keephold" / "trusted.json"
    record.add(place, file.read_bytes(), None)
    return file
