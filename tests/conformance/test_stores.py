"""Every store passes the suite that we ship for people who write their own."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.soak import SOAK

from keephold.config import load_config
from keephold.config.would_do import would_do
from keephold.errors import KeepholdError
from keephold.store import open_store
from keephold.store.base import Browse
from keephold.store.memory import MemoryStore
from keephold.store.postgres.address import address, shown
from keephold.testing.conformance import StoreConformance


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


class Postgres(StoreConformance):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def make(self) -> Browse:
        from keephold.store.postgres.store import PostgresStore

        return PostgresStore(self._url)

    def again(self, store: Browse) -> Browse:
        return self.make()


@pytest.mark.parametrize("check", Memory.checks())
async def test_memory(check: str) -> None:
    await Memory().run(check)


@pytest.mark.parametrize("check", Sqlite.checks())
async def test_sqlite(check: str, tmp_path: Path) -> None:
    await Sqlite(tmp_path).run(check)


MANY_ROUND_TRIPS = {
    "check_D6_many_deadlines",
    "check_N6_a_thousand_wait_and_a_line_says_how_many_went",
    "check_N6_notifications_that_are_dropped_or_expire",
    "check_N6_the_less_it_matters_the_sooner_it_goes",
    "check_N6_what_a_handle_prints_is_one_line",
    "check_N6_what_was_taken_back_makes_room",
    "check_R4_a_refused_list_leaves_nothing_behind",
    "check_S5_the_newest_ten_thousand_tombstones_stay",
}
"""Thousands of statements, each of which goes to the server and back. The soak makes them."""


@pytest.mark.slow
@pytest.mark.parametrize("check", Postgres.checks())
async def test_postgres(check: str, postgres: str) -> None:
    if check in MANY_ROUND_TRIPS and not SOAK:
        pytest.skip("for the soak")
    await Postgres(postgres).run(check)


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


def test_Y1_a_postgresql_url_names_a_database_and_a_schema() -> None:
    from keephold.store.postgres.store import PostgresStore

    for kind in ("postgresql", "postgres"):
        store = open_store(f"{kind}://me:hunter2@db.example:5433/work?sslmode=require&schema=tools")
        assert isinstance(store, PostgresStore)
        assert store.address.name == "PostgreSQL at db.example:5433/work, schema tools"
        assert store.address.dsn == "postgresql://me:hunter2@/work?sslmode=require"
        assert store.address.servers == (("db.example", 5433),)
        assert "hunter2" not in repr(store.address)
    several = open_store("postgresql://me:hunter2@db1:5432,[::1]:5433/work").address  # type: ignore[attr-defined]
    assert several.name == "PostgreSQL at db1:5432,[::1]:5433/work, schema keephold"
    assert open_store("postgresql:///work?host=/run/pg").address.name == "PostgreSQL at /run/pg/work, schema keephold"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("//me@db1,[::1]:5433/work", [("db1", None), ("::1", 5433)]),
        ("//[::1],db2:65535/work", [("::1", None), ("db2", 65535)]),
        ("//me@db:/work", [("db", None)]),
        ("//[fe80::1%25eth0]/work", [("fe80::1%eth0", None)]),
        ("//me:a[b]@%2Frun%2Fpg/work", [("/run/pg", None)]),
        ("///work", [(None, None)]),
        ("///work?host=/run/pg,db2:5434&port=5433", [("/run/pg", 5433), ("db2", 5434)]),
    ],
)
def test_Y1_a_postgresql_url_names_servers(url: str, servers: list[tuple[str | None, int | None]]) -> None:
    """asyncpg gets each server by itself: newer Pythons refuse an address of IPv6 behind another host."""
    found = address(f"postgresql:{url}")
    assert found.servers == tuple(servers)
    assert not urlsplit(found.dsn).hostname and "[" not in found.dsn


def test_K5_the_password_of_a_store_is_not_shown(tmp_path: Path) -> None:
    for query in ("", "?schema=No"):
        file = tmp_path / "keephold.toml"
        file.write_text(f"[store]\nurl = 'postgresql://me:hunter2@db.example/work{query}'\n")
        assert "hunter2" not in "\n".join(would_do(load_config(file)))


@pytest.mark.parametrize(
    "url",
    ["", "work.db", "memory", "memory://", "sqlite:", "sqlite://", "sqlite:///", "sqlite://me:hunter2@host/work.db",
     "sqlite:///:memory:", "postgresql://me:hunter2@host/db?schema=No", "postgres://me:hunter2@host:1x/db",
     "postgresql://me:hunter2@host:99999/db", "postgresql://me:70000/hunter2@host/db", "postgresql://me:5433/hunter2@h/db",
     "postgresql://me:7#hunter2@host/db", "postgresql://me:7@hunter2@host/db", "postgresql://me:hunter2@db1,,db2/db",
     "postgresql://me:hunter2@/db?host=h&port=99999", "postgresql://me:hunter2@/db?host=a,b,c&port=1,2",
     "postgresql://me:hunter2@db/work?host=/run/pg", "mysql://me:hunter2@host/db", "me:hunter2@host"],
)  # fmt: skip
def test_Y1_any_other_url_is_an_error_that_says_what_would_be_right(url: str) -> None:
    with pytest.raises(KeepholdError) as refused:
        open_store(url)
    assert refused.value.code == "unsupported_store"
    right = ("`postgresql://",) if url.startswith("postgres") else ("`memory:`", "`sqlite:///work.db`")
    assert all(each in refused.value.message for each in right), refused.value.message
    assert "hunter2" not in refused.value.message
    assert not url.startswith("postgres") or shown(url) == "a PostgreSQL database"
