"""The store that keeps nothing after the process ends: the same promises as any other, kept in dicts."""

from keephold.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
