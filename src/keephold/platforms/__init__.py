"""Everything that differs between operating systems, behind one object: `machine`.

`Portable` needs only POSIX; it is for macOS, and for Linux without `/proc`. `Linux` does the same better, with pidfds,
`/proc` and control groups. `Windows` does less. The choice is made once, by what the machine has.
`KEEPHOLD_PLATFORM=portable` chooses the first everywhere; `windows` is for tests, which look like Windows otherwise.

The guard's program (`tools/marks.py`) and every worker import this package, so it imports little.
"""

import os
import sys

from keephold.platforms.portable import BUSY, FEW, UNKNOWN, Group, Look, Portable, ProcessEndWatch, State

__all__ = [
    "BUSY",
    "ENDS",
    "FEW",
    "UNKNOWN",
    "VARIABLE",
    "Group",
    "Look",
    "Portable",
    "ProcessEndWatch",
    "State",
    "machine",
]

VARIABLE = "KEEPHOLD_PLATFORM"
ENDS = ("SIGINT", "SIGTERM", "SIGBREAK")
"""Signals that ask a program to end. Windows alone has the last, for Ctrl-Break and closed windows."""


def _chosen() -> Portable:
    if os.name == "nt" or os.environ.get(VARIABLE) == "windows":
        from keephold.platforms.windows import Windows

        return Windows()
    if sys.platform == "linux" and os.environ.get(VARIABLE) != "portable":
        from keephold.platforms.linux import Linux, has_everything

        if has_everything():
            return Linux()
    return Portable()


machine = _chosen()
