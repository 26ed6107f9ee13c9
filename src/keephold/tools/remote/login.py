"""The user's login at an MCP server, in a private file: `keephold mcp-login` writes it, and connections use it.

Each server has a file of its own, named after its URL. Nothing here imports `mcp`, because `keephold check` reads it.
"""

import asyncio
import hashlib
import json
import os
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keephold.errors import ConfigError, KeepholdError
from keephold.platforms import machine
from keephold.platforms.unix import O_NOFOLLOW
from keephold.private_file import NotPrivateError, read_private, replace_private

_BYTES = 1 << 20
_LOCK_SECS = 30.0
_TRY_SECS = 0.02
_TOKEN = re.compile("[!-~]+")
"""A header carries these characters unchanged. Errors of HTTP libraries show a header with others, and so a token."""


@dataclass(frozen=True, slots=True)
class Login:
    """The tokens, and what is needed to refresh them, as JSON of the models in `mcp`."""

    tokens: dict[str, Any]
    expires_at: float | None
    """When the access token expires, in seconds since 1970; None: the server did not say."""
    client: dict[str, Any]
    """keephold, as the authorization server has registered it."""
    metadata: dict[str, Any] | None
    """The description of the authorization server, with the address where tokens are refreshed."""
    resource: dict[str, Any] | None
    """The description of the MCP server as a protected resource."""

    def __post_init__(self) -> None:
        for token in (self.access, self.refresh):
            if token is not None and not _TOKEN.fullmatch(token):
                raise ValueError("a token is not visible ASCII")

    @property
    def access(self) -> str:
        token: str = self.tokens["access_token"]
        return token

    @property
    def refresh(self) -> str | None:
        return self.tokens.get("refresh_token")

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and time.time() > self.expires_at


@dataclass(frozen=True, slots=True)
class LoginFile:
    """The file of one server."""

    url: str = field(repr=False)
    directory: Path | None
    """Where the files of all servers are; None: the user has no home directory."""
    seen: deque[str] = field(default_factory=lambda: deque(maxlen=50), compare=False, repr=False)
    """The tokens that were read or written last, to be masked wherever a server may repeat one (K5)."""

    @property
    def file(self) -> Path:
        """Return the path. Raise `ConfigError` if the user has no home directory."""
        if self.directory is None:
            raise ConfigError(["there is no home directory for logins; set XDG_STATE_HOME"])
        return self.directory / f"{hashlib.sha256(self.url.encode()).hexdigest()[:32]}.json"

    def read(self) -> Login | None:
        """Return the login, if there is one. Raise `KeepholdError` if the file cannot be used."""
        try:
            known = json.loads(read_private(self.file, _BYTES))
            login = Login(**known["login"])
        except FileNotFoundError:
            return None
        except NotPrivateError:
            why = "can be read or written by another user"
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            why = "cannot be read"
        else:
            self._note(login)
            return login
        raise KeepholdError(
            f"the login in {self.file} {why}; remove the file, and log in again", code="mcp_disconnected"
        )

    def write(self, login: Login) -> None:
        """Keep a login in place of the former one."""
        self._note(login)
        self._make_directory()
        kept = {name: getattr(login, name) for name in Login.__slots__}
        replace_private(self.file, {"url": self.url, "login": kept})

    def remove(self) -> bool:
        """Remove the login. Return whether there was one."""
        with suppress(FileNotFoundError):
            self.file.unlink()
            return True
        return False

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Keep others, in this process and elsewhere, from refreshing at the same time: servers revoke a login whose
        refresh token is used twice."""
        self._make_directory()
        descriptor = os.open(self.file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | O_NOFOLLOW, 0o600)
        try:
            async with asyncio.timeout(_LOCK_SECS):  # another process may have been stopped in the middle
                while not _held(descriptor):  # noqa: ASYNC110 - another process sets no event
                    await asyncio.sleep(_TRY_SECS)
            yield
        finally:
            os.close(descriptor)

    def _make_directory(self) -> None:
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.file.parent.stat().st_uid != machine.user():  # `sudo` that keeps HOME
            raise ConfigError([f"{self.file.parent} belongs to another user; set HOME to your own directory"])
        self.file.parent.chmod(0o700)

    def _note(self, login: Login) -> None:
        secret = (login.access, login.refresh, login.client.get("client_secret"))
        self.seen.extend(each for each in secret if isinstance(each, str) and each not in self.seen)


def _held(descriptor: int) -> bool:
    try:
        machine.lock(descriptor)
    except BlockingIOError:
        return False
    return True
