"""`keephold …` in a process of its own that does not begin with importing everything: a fork of this one.

Its arguments, directory, environment, standard streams and exit code are real. How a program begins and ends, and what
signals do to it, is for tests that start one.
"""

import importlib
import logging
import multiprocessing
import os
import pkgutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

import keephold.cli


def run(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], stdin: str, patience: float
) -> tuple[int, str, str]:
    """Its exit code and what it printed to either stream."""
    _preload(arguments[0])
    given, write = os.pipe()
    with (
        os.fdopen(given, "rb") as reader,
        os.fdopen(write, "wb") as writer,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        streams = (reader.fileno(), out.fileno(), err.fileno())
        process = multiprocessing.get_context("fork").Process(
            target=_be, args=(arguments, directory, environment, streams, writer.fileno())
        )
        process.start()
        writer.write(stdin.encode())
        writer.close()
        process.join(patience)
        late = process.exitcode is None
        process.kill()
        process.join()
        code = process.exitcode
        process.close()
        assert not late and code is not None, f"keephold {' '.join(arguments)} did not end within {patience:g} s"
        return code, _read(out), _read(err)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@cache
def _preload(command: str) -> None:
    names = [module.name for module in pkgutil.iter_modules(keephold.cli.__path__, "keephold.cli.")]
    names += ["keephold.store.sqlite", *(("pydantic_ai", "tests.e2e.chat_model") if command == "chat" else ())]
    for name in names:
        importlib.import_module(name)


def _be(
    arguments: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    writer: int,
) -> None:
    os.setsid()  # the signals of whoever runs the tests are not for it
    os.close(writer)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["keephold", *arguments]
    sys.path.insert(0, str(directory))
    warnings.resetwarnings()
    warnings.simplefilter("error")
    logging.root.handlers.clear()  # pytest's
    logging.root.setLevel(logging.WARNING)
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    keephold.cli.main()
