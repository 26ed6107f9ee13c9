"""The store that survives nothing: the same promises as any other, kept in dicts, with no wait."""

from keephold.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
