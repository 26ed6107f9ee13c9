"""Every store passes the suite that we ship for people who write their own."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite("keephold.testing.conformance")

from keephold.errors import KeepholdError  # noqa: E402
from keephold.store.base import Browse  # noqa: E402
from keephold.store.memory import MemoryStore  # noqa: E402
from keephold.store.urls import open_store  # noqa: E402
from keephold.testing.conformance import StoreConformance  # noqa: E402


class Memory(StoreConformance):
    durable = False

    def make(self) -> Browse:
        return MemoryStore()


class Sqlite(StoreConformance):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def make(self) -> Browse:
        from keephold.store.sqlite import SqliteStore

        return SqliteStore(self._directory / "store.db")

    def again(self, store: Browse) -> Browse:
        return self.make()


@pytest.mark.parametrize("check", Memory.checks())
async def test_memory(check: str) -> None:
    await Memory().run(check)


@pytest.mark.parametrize("check", Sqlite.checks())
async def test_sqlite(check: str, tmp_path: Path) -> None:
    await Sqlite(tmp_path).run(check)


def test_a_store_that_does_not_last_is_spared_what_needs_a_second_one() -> None:
    assert set(Memory.checks()) < set(Sqlite.checks())


def test_Y1_a_url_names_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keephold.store.sqlite import SqliteStore

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_store("memory:"), MemoryStore)
    for url in ("sqlite:///work.db", f"sqlite:///{tmp_path}/work.db", "sqlite:///~/work.db"):
        assert isinstance(open_store(url), SqliteStore)
    assert list(tmp_path.iterdir()) == [], "nothing is made before it is opened"


@pytest.mark.parametrize(
    "url",
    ["", "work.db", "memory", "memory://", "sqlite:", "sqlite://", "sqlite:///", "sqlite://me:hunter2@host/work.db",
     "sqlite:///:memory:", "postgresql://me:hunter2@host/db", "mysql://me:hunter2@host/db", "me:hunter2@host"],
)  # fmt: skip
def test_Y1_any_other_url_is_an_error_that_says_what_would_be_right(url: str) -> None:
    with pytest.raises(KeepholdError) as refused:
        open_store(url)
    assert refused.value.code == "unsupported_store"
    assert "`memory:`" in refused.value.message and "`sqlite:///work.db`" in refused.value.message
    assert "hunter2" not in refused.value.message
