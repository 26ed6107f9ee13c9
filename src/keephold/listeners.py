"""Lists of functions that are called when something happens, so that any number of parts may listen."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(list[Callable[P, object]], Generic[P]):
    """Functions to call when something happens, in the order in which they were added."""

    __slots__ = ()

    def add(self, listener: Callable[P, object]) -> Callable[[], None]:
        """Call `listener` from now on. Returns the function that removes it; calling that twice is harmless."""
        self.append(listener)

        def remove() -> None:
            if listener in self:
                self.remove(listener)

        return remove

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every listener. A listener may add or remove listeners; that counts from the next call on."""
        for listener in tuple(self):
            listener(*args, **kwargs)
