"""Names that Windows lacks: modules, and flags for `os.open`.

Code that calls the modules never runs on Windows, but is imported there. Flags that Windows lacks are 0 there;
`O_CLOEXEC` also prevents that it opens a file as text.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import fcntl
    import termios
    import tty
else:
    try:
        import fcntl
        import termios
        import tty
    except ModuleNotFoundError:
        fcntl = termios = tty = None

__all__ = ["fcntl", "termios", "tty"]


O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
O_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
O_NOCTTY: int = getattr(os, "O_NOCTTY", 0)
O_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
O_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
