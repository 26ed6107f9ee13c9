"""The store that keeps nothing: the registry's memory is all there is. The same path as any store, with no wait."""

from collections.abc import Callable, Sequence

from holdfast.errors import HoldfastError
from holdfast.store.base import Op, Store


class MemoryStore:
    """Commits at once. What it is told lives on in the registry and ends with the process."""

    def commit(self, ops: Sequence[Op], done: Callable[[], None]) -> None:
        done()


def open_store(url: str) -> Store:
    """The store a URL names (Y1)."""
    if url == "memory:":
        return MemoryStore()
    raise HoldfastError(
        f"store `{url}` is not supported by this version; `memory:` is the only one", code="unsupported_store"
    )
