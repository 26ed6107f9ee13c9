"""Modules that Windows lacks. Code that calls them never runs there, but is imported."""

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
