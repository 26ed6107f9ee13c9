"""Output that cannot be written: a full disk is told in words, a reader that goes away is nobody's error (L3)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.place import Place, spawn
from tests.patience import PATIENCE
from tests.trusting import write_trusted

COMMANDS = [
    ("wait", "g", "--timeout", "0"),
    ("wait", "over"),
    ("ps",),
    ("ps", "--json"),
    ("show", "g"),
    ("logs", "over"),
    ("logs", "over", "--raw"),
    ("conversations",),
    ("wait", "--help"),
    ("--help",),
    ("--version",),
    ("turn",),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """`g` runs, `over` has stopped and was fine. None of the commands changes that."""
    with ExitStack() as stack:
        place = Place(tmp_path_factory.mktemp("place"), stack)
        write_trusted(place.directory / "keephold.toml", "")
        worker = place.worker()
        worker.run(spawn("gate", "g", name="g"), spawn("gate", "over", name="over"))
        worker.end("over")
        assert place.keephold("wait", "over").code == 0
        yield place


def run(directory: Path, *arguments: str, stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
    """The exit code, and what was said on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "keephold", *arguments], cwd=directory, stdin=subprocess.DEVNULL, stdout=stdout,
        stderr=stderr, env={**os.environ, "KEEPHOLD_STORE": "sqlite:///work.db", "PYTHONUNBUFFERED": ""},
        timeout=PATIENCE, text=True,
    )  # fmt: skip
    return done.returncode, done.stderr or ""


@pytest.fixture
def full() -> Iterator[int]:
    with Path("/dev/full").open("wb") as file:
        yield file.fileno()


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_L3_a_full_disk_is_told_in_a_sentence(place: Place, full: int, arguments: tuple[str, ...]) -> None:
    said = run(place.directory, *arguments, stdout=full)
    assert said == (2, "Error: what is printed cannot be written: No space left on device\n")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_L3_a_reader_that_is_gone_is_what_it_is_to_any_program(
    place: Place, unread: int, arguments: tuple[str, ...]
) -> None:
    assert run(place.directory, *arguments, stdout=unread) == (128 + signal.SIGPIPE, "")


def test_L3_wait_never_takes_a_disk_for_a_handle(place: Place, full: int) -> None:
    assert run(place.directory, "wait", "over", stdout=full, stderr=full)[0] == 2
    assert run(place.directory, "wait", "nobody", stdout=subprocess.DEVNULL, stderr=full)[0] == 2


def test_L3_a_chat_ends_with_a_sentence_as_well(place: Place, full: int) -> None:
    code, said = run(place.directory, "chat", "hello", "--model", "test", stdout=full)
    assert code == 2
    assert said.endswith("Error: what is printed cannot be written: No space left on device\n")
    assert "Traceback" not in said


def test_L3_a_stdout_that_is_closed_is_like_dev_null(place: Place) -> None:
    for arguments in (("wait", "over"), ("logs", "over"), ("ps",)):
        command = f'exec "{sys.executable}" -m keephold {" ".join(arguments)} --store sqlite:///work.db >&-'
        done = subprocess.run(["sh", "-c", command], cwd=place.directory, stderr=subprocess.PIPE, timeout=PATIENCE)
        assert (done.returncode, done.stderr) == (0, b"")
