"""The emulator takes a third of a second to be ready: that passes in the background, before a terminal needs it."""

import threading


def preload_soon() -> None:
    """Load it in a thread. Whoever needs it earlier waits for the rest; so does the end of the program: an interpreter
    that is taken down while a thread is in native code may crash."""
    from keephold.tools.terminal.emulator import preload

    threading.Thread(target=preload, name="emulator").start()
