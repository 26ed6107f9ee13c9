"""How tests run here: coroutine tests on a loop of their own, a leak check after each, examples that can be repeated.

A coroutine test that takes the fixture `clock` runs in that clock's virtual time, any other in real time. Tasks that
are left when it returns are a failure; `tests/leaks.py` looks for everything else a test may leave behind.
"""

import asyncio
import gc
import inspect
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Coroutine, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from tests import warm

from keephold.platforms import machine
from keephold.testing import VirtualClock
from keephold.testing.clock import where

if TYPE_CHECKING:
    from tests.postgres import Schemas
    from tests.temporal import Place

pytest_plugins = ["tests.leaks", "tests.interop.counts"]
pytest.register_assert_rewrite("keephold.testing.conformance")

ROOM = 4 << 30
"""Bytes that the files of all tests at one time can never need."""

# Two busy cores make examples slow now and then; that is no defect of the code under test.
settings.register_profile("repeatable", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("repeatable"), derandomize=True, database=None)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose Hypothesis' profile, and its seed before its own plugin looks for one."""
    _hear_signals()
    _use_directories_of_nobody(config)
    _keep_files_in_memory()
    config.addinivalue_line("markers", "cold: how programs of ours start is the subject, so they start as usual")
    config.addinivalue_line("markers", "linux(reason): the portable form of `platforms` does not promise it")
    config.addinivalue_line("markers", "slow: `make quick` does not wait for it")
    stack = ExitStack()
    stack.enter_context(warm.installed())
    config.add_cleanup(stack.close)
    if os.environ.get("CI"):
        settings.load_profile("ci")
        return
    settings.load_profile("repeatable")
    if config.option.hypothesis_seed is None:
        told = getattr(config, "workerinput", {}).get("hypothesis_seed")
        config.option.hypothesis_seed = told or str(random.SystemRandom().randrange(2**32))


def _use_directories_of_nobody(config: pytest.Config) -> None:
    """Neither the configuration of the user who runs the tests counts, nor do tests write to that user's state."""
    directory = tempfile.TemporaryDirectory(prefix="keephold-tests-")
    config.add_cleanup(directory.cleanup)
    for name in ("STATE", "CONFIG"):
        os.environ[f"XDG_{name}_HOME"] = f"{directory.name}/{name.lower()}"


def _keep_files_in_memory() -> None:
    """`tmp_path` is in memory where there is room: a commit to a disk takes milliseconds, and there are very many."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def _hear_signals() -> None:
    """A run in the background of a script, or by `nohup`, ignores these, and so would every program that a test starts
    and signals."""
    heard = ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL))
    for number, handler in (*heard, (signal.SIGHUP, lambda *_: None)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What all tests share stays, so nobody looks for garbage in it: that took a quarter of a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: the workers use the seed that is printed at the end."""
    node.workerinput["hypothesis_seed"] = node.config.option.hypothesis_seed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.hypothesis_seed is not None:
        terminalreporter.write_line(f"repeat the same examples with --hypothesis-seed={config.option.hypothesis_seed}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("cold"):
        with warm.cold():
            return (yield)
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if machine.name != "linux" and (marker := item.get_closest_marker("linux")):
        pytest.skip(f"needs Linux: {marker.args[0]}")


@pytest.fixture
def clock() -> VirtualClock:
    """Virtual time for a coroutine test."""
    return VirtualClock()


@pytest.fixture(scope="session")
def postgres_schemas(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Schemas"]:
    """Schemas on a PostgreSQL server that all workers of the session share."""
    from tests.postgres import Schemas, shared_server

    with shared_server(_of_session(tmp_path_factory) / "postgres") as url:
        schemas = Schemas(url)
        yield schemas
        schemas.drop()


@pytest.fixture
def postgres(postgres_schemas: "Schemas") -> Iterator[str]:
    """The URL of an empty PostgreSQL store."""
    with postgres_schemas.one() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind that processes can share."""
    return f"sqlite:///{tmp_path}/work.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres"))


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Temporal server that all workers of the session share."""
    from tests.temporal import shared_server

    with shared_server(_of_session(tmp_path_factory) / "temporal") as address:
        yield address


@pytest.fixture
def temporal(temporal_address: str) -> "Place":
    """A task queue on a Temporal server."""
    from tests.temporal import Place

    return Place(temporal_address)


def _of_session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that all workers of the session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    test = _leaving_no_task(pyfuncitem.obj(**arguments))
    clock = pyfuncitem.funcargs.get("clock")
    if isinstance(clock, VirtualClock):
        clock.run(test)
    else:
        with asyncio.Runner(debug=False) as runner:
            runner.run(test)
    return True


async def _leaving_no_task(test: Coroutine[Any, Any, None]) -> None:
    await test
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        tasks = "\n".join(sorted(where(task) for task in left))
        pytest.fail(f"the test returned and left tasks behind; await or cancel and await them:\n{tasks}", pytrace=False)
