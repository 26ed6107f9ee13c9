"""Lists of functions that are called when something happens, so that any number of parts may listen."""

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")

_log = logging.getLogger("keephold")


class Listeners(list[Callable[P, object]], Generic[P]):
    """Functions to call when something happens, in the order in which they were added."""

    __slots__ = ()

    def add(self, listener: Callable[P, object]) -> Callable[[], None]:
        """Call `listener` from now on. Returns the function that removes it; calling that twice is harmless."""
        self.append(listener)
        added = [listener]

        def remove() -> None:
            if added and listener in self:
                self.remove(added.pop())

        return remove

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every listener. A listener may add or remove listeners; that counts from the next call on.

        A listener that raises is logged: neither the other listeners nor the caller depend on it.
        """
        for listener in tuple(self):
            try:
                listener(*args, **kwargs)
            except Exception:
                _log.exception("a listener failed")
