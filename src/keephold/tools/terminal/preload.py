"""Loads the emulator in the background, before a terminal needs it: that takes a third of a second."""

import threading


def preload_soon() -> None:
    """Load it in a thread. A terminal that needs it earlier waits for the rest, and so does the end of the program: an
    interpreter that is torn down while a thread is in native code may crash.
    """
    from keephold.tools.terminal.emulator import preload

    threading.Thread(target=preload, name="emulator").start()
