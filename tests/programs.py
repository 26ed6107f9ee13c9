"""Programs that tests need and a machine may not have: installed if that is possible, else the test is skipped."""

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

PACKAGES = {"tmux": "tmux", "vim": "vim", "less": "less", "ps": "procps", "top": "procps", "git": "git"}
"""The Debian package of each program."""


def needs(*programs: str) -> None:
    """Have these programs, or skip. Call it in a fixture, or first in a test."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing and (why := _install(tuple(sorted({PACKAGES[program] for program in missing})))):
        pytest.skip(f"needs {', '.join(missing)}: {why}")


@functools.cache
def _install(packages: tuple[str, ...]) -> str:
    """Why they cannot be installed; empty if they are."""
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        return f"install {' '.join(packages)}"
    with Path(tempfile.gettempdir(), "keephold-tests-install").open("w") as lock:  # of all workers one installs
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = _apt("install", "-y", "--no-install-recommends", *packages)
        if failed:  # the lists may be old, or not there
            failed = _apt("update") or _apt("install", "-y", "--no-install-recommends", *packages)
    return failed


def _apt(*arguments: str) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(["apt-get", "-q", *arguments], capture_output=True, env=environment, timeout=50)
    except subprocess.TimeoutExpired:
        return f"apt-get {arguments[0]} took too long"
    return "" if done.returncode == 0 else f"apt-get {arguments[0]} failed: {done.stderr.decode()[-200:]}"
