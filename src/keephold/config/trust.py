"""Find `keephold.toml`, and say whether the user lets it act (K7).

A file that is found, not named, may come from anybody: from a clone, or from another user of a shared directory. It may
act only if the user's record has its path and the digest of its bytes. The bytes are read once, so that the checked
bytes are the loaded ones. The user's own file, in their configuration directory, needs no entry in the record.

Imports are kept light: shell completion and the commands that only look come through here.
"""

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from keephold.errors import ConfigError
from keephold.platforms import machine
from keephold.platforms.unix import O_NOCTTY, O_NONBLOCK
from keephold.private_file import NotPrivateError, read_private, replace_private

T = TypeVar("T")

FILE_NAME = "keephold.toml"
LARGEST = 1 << 18
"""Bytes of a file that is found. The record keeps the text of files up to a quarter of this."""
_DOTS = 200
"""Dots on a line outside of strings: the costs of a dotted key grow with the square of its parts."""
_STRINGS = re.compile(
    r'"""(?:[^\\]|\\.?)*?(?:"{3,5}|\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\[^\n])*"?'
    r"|'[^'\n]*'?"
    r"|\#[^\n]*",
    re.DOTALL,
)
"""Strings and comments, as `tomllib` reads them up to its first error. Long strings may end with two quotes more."""
_RECORD_BYTES = 1 << 26
_ACL = "system.posix_acl_access"


# Where


def find_config(start: Path) -> Path | None:
    """Return the `keephold.toml` of `start` or of the nearest directory above it."""
    start = start.absolute()
    candidates = (directory / FILE_NAME for directory in (start, *start.parents))
    return next((path for path in candidates if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    with suppress(OSError):  # a directory above it that this user may not enter
        return path.is_file()
    return False


def own_config() -> Path | None:
    """Return the user's own `keephold.toml`, if they have one."""
    directory = _user_directory("XDG_CONFIG_HOME", ".config")
    path = None if directory is None else directory / FILE_NAME
    return path if path is not None and _is_file(path) else None


def state_directory() -> Path | None:
    """Return the directory for the user's store and record; None if the user has no home directory."""
    return _user_directory("XDG_STATE_HOME", ".local/state")


def _user_directory(variable: str, default: str) -> Path | None:
    given = Path(os.environ.get(variable, ""))
    try:
        return (given if given.is_absolute() else Path.home() / default) / "keephold"
    except RuntimeError:
        return None


# One file


class Entry(NamedTuple):
    """A trusted file in the record."""

    sha256: str
    text: str | None
    """The trusted text without secrets, to show what has changed since; None if it is not kept."""
    at: float


class Found(NamedTuple):
    """A configuration file that was found, as it was when it was read."""

    path: Path
    data: bytes
    refused: str
    """Why the file cannot be trusted, with the remedy; empty if it can."""
    entry: Entry | None
    own: bool
    """It is the user's own file, which needs no entry."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def trusted(self) -> bool:
        """Whether the file may act."""
        return not self.refused and (self.own or (self.entry is not None and self.entry.sha256 == self.sha256))


def find(start: Path) -> Found | None:
    """Return the file of `start` or of the nearest directory above it, else the user's own."""
    path = find_config(start) or own_config()
    return None if path is None else examine(path)


def find_usable(start: Path) -> tuple[Found | None, Found | None]:
    """Return the file that may act, and the one that was found and is ignored: then the user's own counts."""
    found = find(start)
    if found is None or found.trusted:
        return found, None
    own = own_config()
    instead = None if own is None else examine(own)
    return (instead if instead is not None and instead.trusted else None), found


def names_store(found: Found) -> bool:
    """Return whether the file names a store, or cannot be read."""
    import tomllib

    try:
        return bool(found.refused) or tomllib.loads(found.data.decode()).get("store", {}).get("url") is not None
    except (ValueError, AttributeError, RecursionError):
        return True


def examine(path: Path) -> Found:
    """Read the file, once; check who else could have written it, and compare it with the record."""
    # Not the target of a link: relative paths in the file count from the directory in which it was found, so another
    # directory with a link to a trusted file is not trusted.
    path = Path(os.path.realpath(path.parent), path.name)
    try:
        data = _read(path)
        refused = _not_mine(path) or _too_large(data)
    except OSError as error:
        data, refused = b"", f"it cannot be read: {error.strerror}; make it a readable file"
    except _Refused as why:
        data, refused = b"", str(why)
    own = own_config()
    mine = own is not None and Path(os.path.realpath(own.parent), own.name) == path
    return Found(path, data, refused, Record().read().get(str(path)), mine)


class _Refused(Exception):
    pass


def _read(path: Path) -> bytes:
    # Non-blocking: in place of the file that was found, there may be a pipe by now.
    with os.fdopen(os.open(path, os.O_RDONLY | O_NONBLOCK | O_NOCTTY), "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise _Refused("it is not a regular file")
        why = _unsafe(path, info)
        if why:
            raise _Refused(why)
        return file.read(LARGEST + 1)


def _not_mine(path: Path) -> str:
    """Return who else could replace the file: by its link, or by a directory above the file or above its target."""
    above = dict.fromkeys((*path.parents, *Path(os.path.realpath(path)).parents))
    places = [*([path] if path.is_symlink() else []), *above]
    return next((why for place in places if (why := _unsafe(place, place.lstat()))), "")


def _unsafe(path: Path, info: os.stat_result) -> str:
    """Return why another user controls the file or directory."""
    me, where = machine.user(), "it" if path.name == FILE_NAME else f"the directory {path} above it"
    if info.st_uid not in (me, 0):
        return f"{where} belongs to another user ({_user_name(info.st_uid)}), not to you or root"
    if stat.S_ISLNK(info.st_mode) or not _others_write(path, info):
        return ""
    return f"{where} may be written to by other users: chmod go-w {path}"


def _others_write(path: Path, info: os.stat_result) -> bool:
    mode = info.st_mode
    if machine.is_private(info):
        return False
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:  # others can add files, but not replace ours
        return False
    return bool(mode & stat.S_IWOTH) or bool(mode & stat.S_IWGRP and not _only_me(path, info.st_gid))


def _only_me(path: Path, group: int) -> bool:
    """Return whether nobody but this user and root has the group's rights. With an access control list, the mode shows
    the rights of everybody in it as those of the group."""
    import grp
    import pwd

    with suppress(OSError, AttributeError):  # only Linux has `getxattr`
        os.getxattr(path, _ACL)
        return False
    try:
        named = [pwd.getpwnam(name).pw_uid for name in grp.getgrgid(group).gr_mem]
    except KeyError:
        return False
    members = {*named, *(user.pw_uid for user in pwd.getpwall() if user.pw_gid == group)}
    return bool(members) and members <= {os.geteuid(), 0}


def _user_name(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _too_large(data: bytes) -> str:
    if len(data) > LARGEST:
        return f"it has more than {LARGEST} bytes; name a file of that size by --config"
    bare = _STRINGS.sub('""', data.decode(errors="replace"))
    if any(line.count(".") > _DOTS for line in bare.splitlines()):
        return f"a line has more than {_DOTS} dots; name such a file by --config"
    return ""


# The record


class Record:
    """The trusted files by their paths, in a private file of the user's state directory."""

    def __init__(self) -> None:
        directory = state_directory()
        self.file = None if directory is None else directory / "trusted.json"
        self.problem = ""
        """Why nothing in the file counts."""

    def read(self) -> dict[str, Entry]:
        """Return the entries. A file that others can write, or that is damaged, has none."""
        if self.file is None:
            return {}
        try:
            known = json.loads(read_private(self.file, _RECORD_BYTES))
            return {path: Entry(**entry) for path, entry in known["trusted"].items()}
        except FileNotFoundError:
            return {}
        except NotPrivateError:
            self.problem = f"{self.file} can be read or written by another user; remove it, and trust again"
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.problem = f"{self.file} cannot be read; remove it, and trust again"
            return {}

    def add(self, path: Path, data: bytes, text: str | None) -> None:
        """Trust these bytes of the file; `text` is what to keep of them, if that is not too long."""
        kept = None if text is None or len(text) > LARGEST // 4 else text
        entry = Entry(hashlib.sha256(data).hexdigest(), kept, time.time())
        self._change(lambda entries: entries.update({str(path): entry}))

    def remove(self, path: Path) -> bool:
        """Remove the file from the trusted ones. Return whether it was trusted."""
        return self._change(lambda entries: entries.pop(str(path), None)) is not None

    def _change(self, change: Callable[[dict[str, Entry]], T]) -> T:
        if self.file is None:
            raise ConfigError(["there is no home directory for the record of trusted files; set XDG_STATE_HOME"])
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.file.parent.stat().st_uid != machine.user():  # `sudo` that keeps HOME
                raise ConfigError([f"{self.file.parent} belongs to another user; set HOME to your own directory"])
            with _locked(self.file.parent):  # so that two changes at once are both kept
                entries = self.read()
                if self.problem:
                    raise ConfigError([self.problem])
                changed = change(entries)
                replace_private(self.file, {"trusted": {path: entry._asdict() for path, entry in entries.items()}})
            return changed
        except OSError as error:
            raise ConfigError([f"{self.file} cannot be written: {error.strerror}"]) from None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = machine.lock_directory(directory.resolve(), wait=True)  # the user's own directory may be a link
    try:
        yield
    finally:
        os.close(descriptor)
