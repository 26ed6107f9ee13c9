"""Why a child process was not started, or not written to: errors that say what was wrong and what would be right.

The same words for a command on pipes (`process.py`) and for one in a terminal (`terminal/pty.py`).
"""

import errno
import os
from collections.abc import Sequence

from keephold.errors import ToolError

UNREAD_LIMIT = 64 * 1024
"""Input that the program may leave unread before more is refused (C6)."""


def input_not_read(unread: int, more: int) -> ToolError:
    """C6: so much is unread, and so much more would be over the limit."""
    return ToolError(
        f"Nothing was written: the program has not read {unread} bytes of earlier input, and {more} more "
        f"would exceed {UNREAD_LIMIT}. Wait until it has read them, or send less at once.",
        code="input_not_read",
    )


def input_closed() -> ToolError:
    """Nobody is there to read it, or to read it any more."""
    return ToolError(
        "Nothing was written: the program's standard input is closed. A program takes input only while it runs, "
        "until `null` is sent or it closes its input itself.",
        code="not_running",
    )


def not_started(argv: Sequence[str], cwd: str | None, error: Exception) -> ToolError:
    """Why a leader could not be started, in words: what was wrong, and what would be right."""
    return ToolError(f"The command was not started: {_reason(argv, cwd, error)}", code="command_not_started")


def _reason(argv: Sequence[str], cwd: str | None, error: Exception) -> str:
    if not argv:
        return "it is empty. Give at least the name of a program."
    if not isinstance(error, OSError):
        return f"{error}. Arguments and environment are text without NUL characters, names in it without `=`."
    program = argv[0]
    if cwd is not None and error.filename == cwd and not os.path.isdir(cwd):  # noqa: PTH112
        return f"its working directory `{cwd}` does not exist or is not a directory. Create it, or set another `cwd`."
    if cwd is not None and error.filename == cwd and cwd != program:
        return f"its working directory `{cwd}` may not be entered ({error.strerror}). Allow it, or set another `cwd`."
    match error.errno:
        case errno.ENOENT if "/" not in program:
            return f"there is no program `{program}` in any directory of PATH. Install it, or give its whole path."
        case errno.ENOENT | errno.ENOTDIR if not os.path.exists(os.path.join(cwd or "", program)):  # noqa: PTH110, PTH118
            return f"there is no program `{program}`. Correct the path, or give a name that is in PATH."
        case errno.ENOENT:
            return f"the interpreter that the first line of `{program}` names does not exist. Correct that line."
        case errno.EACCES:
            return f"`{program}` may not be executed. Make it executable (`chmod +x`), or start it by its interpreter."
        case errno.ENOEXEC:
            return (
                f"`{program}` is no program. Begin it with a line such as `#!/bin/sh`, or start it by its interpreter."
            )
        case errno.E2BIG:
            return "its arguments and environment are too long. Keep each below 128 KiB, or send them as input or file."
    return f"{error.strerror or error} (`{program}`). Make room for more processes and open files, then try again."
