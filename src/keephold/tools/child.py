"""What the child process of a call is given, and its end in words: for commands and terminals alike (F1, C6, F3)."""

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keephold.errors import ToolError
from keephold.tools.guard import Guard
from keephold.tools.session import Exit

CALL_LIMIT = 64 * 1024
"""Bytes of a call that still go into `KEEPHOLD_CALL` (F1)."""


def environment(
    own: Mapping[str, str], guard: Guard, uid: str, values: Mapping[str, Any]
) -> tuple[Path | None, dict[str, str]]:
    """The whole environment of a process, and the file that holds the call if it is too large for that (F1)."""
    env = {**os.environ, **own, **guard.environ(uid)}
    env.pop("KEEPHOLD_CALL", None)  # of a runtime around us
    env.pop("KEEPHOLD_CALL_FILE", None)
    call = json.dumps(values, separators=(",", ":"))  # ASCII: no locale of the program can garble it
    if len(call) <= CALL_LIMIT:
        return None, env | {"KEEPHOLD_CALL": call}
    try:
        number, name = tempfile.mkstemp(prefix="keephold-call-", suffix=".json")
        file = Path(name)
        try:
            with os.fdopen(number, "w") as opened:
                opened.write(call)
        except OSError:
            file.unlink()
            raise
    except OSError as error:
        raise ToolError(
            f"The command was not started: its call could not be written to a file ({error}). Make room in "
            f"{tempfile.gettempdir()}, or set TMPDIR to another directory.",
            code="command_not_started",
        ) from error
    return file, env | {"KEEPHOLD_CALL_FILE": name}


def remove(file: Path | None) -> None:
    """Remove the file that held a call, if one did. Whatever the program did to it, the call goes on."""
    if file is not None:
        with contextlib.suppress(OSError):
            file.unlink()


def as_text(text: str) -> bytes:
    """Text that is sent to a program (C6)."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = "the input has half of a surrogate pair, which is no text; send whole characters"
        raise ToolError(message, code="invalid_arguments") from error


def as_json(data: Any) -> bytes:
    """Whatever is not text is sent as a line of JSON (C6); this is the line without its end."""
    return json.dumps(data, separators=(",", ":")).encode()


def ending(how: Exit) -> str:
    """How a process ended, as what is said of it."""
    if how.signal is None:
        return f"ended with exit code {how.code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(how.signal).name}"
    return f"was killed by signal {how.signal}"
