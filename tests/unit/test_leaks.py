"""The leak check can fail: each kind of leak is made once, in a pytest of its own, and must be blamed on the test that
made it and on no other."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

LEAKY = """
import asyncio, os, subprocess, threading
from pathlib import Path

from keephold.tools import marks

kept = []
over = threading.Event()

def test_child():
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_zombie():
    kept.append(subprocess.Popen(["true"]))

def test_marked_process_that_is_no_child_any_more():
    mark = marks.call_mark(marks.new_runtime_mark(), "uid")
    env = os.environ | {"KEEPHOLD_MARK": f"1-2-3-outer/uid {mark}"}
    subprocess.run(["sh", "-c", "setsid sleep 61 >/dev/null 2>&1 &"], env=env, check=True)
    while not any(Path(f"/proc/{pid}/comm").read_text() == "sleep\\n" for pid in marks.find(mark)):
        pass

def test_descriptor():
    kept.append(os.pipe())

def test_thread():
    threading.Thread(target=over.wait, name="stubborn").start()

async def test_task():
    kept.append(asyncio.create_task(asyncio.sleep(60), name="forgotten"))

async def test_task_in_virtual_time(clock):
    kept.append(asyncio.create_task(asyncio.sleep(60), name="forgotten too"))

def test_that_fails_is_not_blamed_twice():
    kept.append(os.pipe())
    raise AssertionError("its own reason")

def test_descriptor_in_a_cycle_of_garbage():
    class Holder:
        def __init__(self):
            self.me, self.ends = self, os.pipe()
        def __del__(self):
            for end in self.ends:
                os.close(end)
    Holder()

async def test_clean(clock, tmp_path):
    with open(tmp_path / "file", "w"):
        pass
    subprocess.run(["true"], check=True)
    thread = threading.Thread(target=over.set)
    thread.start()
    await clock.advance(3600)
    await asyncio.create_task(asyncio.sleep(60))
    thread.join()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of the leaky tests, run once."""
    folder = tmp_path_factory.mktemp("leaky")
    (folder / "test_leaky.py").write_text(LEAKY)
    (folder / "conftest.py").write_text("import tests.leaks\ntests.leaks.GRACE = 0.2\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-p", "no:schemathesis", "-v", "."]
    path = f"{ROOT}:{ROOT / 'src'}"
    run = subprocess.run(command, cwd=folder, env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"}, capture_output=True)
    return run.stdout.decode()


def outcomes(report: str, test: str) -> list[str]:
    """The words pytest printed behind the name of the test: PASSED, FAILED, ERROR."""
    return re.findall(rf"^test_leaky\.py::{test} (\w+)", report, re.MULTILINE)


def blame(report: str, test: str) -> str:
    """The text between the test's headline and the next."""
    found = re.search(rf"^_+ .*\b{test} _+$(.*?)(?=^_+ |^=+ )", report, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("test_child", "sleep 60"),
        ("test_zombie", "zombie"),
        ("test_marked_process_that_is_no_child_any_more", "KEEPHOLD_MARK: sleep 61"),
        ("test_descriptor", "pipe:["),
        ("test_thread", "thread stubborn"),
    ],
)
def test_what_is_left_behind_is_an_error_of_its_test(report: str, test: str, words: str) -> None:
    assert outcomes(report, test) == ["PASSED", "ERROR"]
    assert words in blame(report, test)


@pytest.mark.parametrize(
    ("test", "words"),
    [("test_task", "task forgotten\n"), ("test_task_in_virtual_time", "task forgotten too\n")],
)
def test_a_task_left_behind_fails_its_test(report: str, test: str, words: str) -> None:
    assert outcomes(report, test) == ["FAILED"]
    assert words in blame(report, test)


def test_a_failed_test_is_not_blamed_twice(report: str) -> None:
    assert outcomes(report, "test_that_fails_is_not_blamed_twice") == ["FAILED"]


@pytest.mark.parametrize("test", ["test_clean", "test_descriptor_in_a_cycle_of_garbage"])
def test_a_clean_test_passes_after_leaky_ones(report: str, test: str) -> None:
    assert outcomes(report, test) == ["PASSED"]


def test_leaked_processes_are_ended(report: str) -> None:
    leaked = [int(pid) for pid in re.findall(r"process (\d+)", report)]
    assert len(leaked) == 3
    # An orphan's zombie stays where nobody reaps it; that is the machine's business.
    assert not [p.pid for p in psutil.process_iter() if p.pid in leaked and p.status() != psutil.STATUS_ZOMBIE]
