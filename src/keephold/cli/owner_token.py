"""The owner's token of a server, in a private file: read, or made at the first start (K1)."""

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from keephold.cli.parameters import LEAST, is_token, text_of
from keephold.cli.store import SQLITE, default_store
from keephold.errors import ConfigError
from keephold.platforms import machine

if TYPE_CHECKING:
    from keephold.store.base import Store


def token_file(store: "Store") -> Path:
    """Return the private file of the owner's token: beside the store, or beside the user's own for one in memory."""
    path: Path | None = getattr(store, "path", None)
    return Path(f"{path or default_store(make=True).removeprefix(SQLITE)}-token").absolute()


def owner_token(file: Path) -> str:
    """Return the owner's token from its file, which is made if it is missing."""
    new = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        if not file.exists():  # linked when complete: another server may start at the same time
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.write(f"{secrets.token_urlsafe(32)}\n")
            with contextlib.suppress(FileExistsError):
                os.link(new, file)
            new.unlink()
    except OSError as error:
        raise ConfigError([f"no token can be kept at {file}: {error.strerror}; set KEEPHOLD_TOKEN instead"]) from None
    if not machine.is_private(file.stat()):
        raise ConfigError([f"{file} can be read by others, who could use the server: chmod 600 it, or remove it"])
    token = text_of(file, "the file of the owner's token").strip()
    if len(token) < LEAST or not is_token(token):
        raise ConfigError([f"{file} has no token of at least {LEAST} characters; remove it, and a new one is made"])
    return token
