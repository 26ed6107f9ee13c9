"""A program that is started warm finds what it would find if it were started as usual, and ends as it would."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests import warm

pytestmark = pytest.mark.slow

LOOK = """
import json, keephold, locale, os, resource, signal, sys, threading, time, warnings
from pathlib import Path
me = Path("/proc/self")
status = (me / "status").read_text().splitlines()
found = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "env": dict(os.environ),
    "cmdline": (me / "cmdline").read_text(), "environ": sorted((me / "environ").read_text().split(chr(0))),
    "descriptors": [name for name in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{name}").exists()],
    "parent": os.getppid(), "own session": os.getsid(0) == os.getpid(), "own group": os.getpgid(0) == os.getpid(),
    "filters": repr(warnings.filters[:1]), "options": sys.warnoptions, "name": __name__,
    "main": __name__ in sys.modules,
    "streams": [repr([s, s.encoding, s.errors, s.line_buffering, s.isatty(), s.newlines, s.fileno(), s.mode, s.closed])
                for s in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__)],
    "signals": {n: repr(signal.getsignal(n)).split(" at ")[0] for n in range(1, 32)},
    "mask": [line for line in status if line.startswith(("SigB", "SigI", "SigC", "Threads"))],
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE), "locale": locale.setlocale(locale.LC_CTYPE),
    "zone": time.tzname,
    "bytecode": sys.dont_write_bytecode, "main thread": threading.current_thread() is threading.main_thread(),
    "file": globals().get("__file__"), "exe": os.readlink("/proc/self/exe"), "input": sys.stdin.read(),
    "umask": os.umask(0),
}
print(json.dumps(found))
"""


def both(command: list[str], **how: Any) -> list["subprocess.CompletedProcess[str]"]:
    """The same program, warm and cold."""
    ran = []
    for start in (nullcontext(), warm.cold()):
        with start:
            ran.append(subprocess.run(command, capture_output=True, text=True, check=False, **how))
    return ran


@pytest.mark.parametrize("options", [[], ["-W", "error"], ["-W", "error", "-W", "ignore::ImportWarning"]])
@pytest.mark.parametrize("kind", ["code", "script", "module"])
def test_it_finds_the_same(kind: str, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "look.py").write_text(LOOK)
    (tmp_path / "look.py").write_text(LOOK)
    what = {"code": ["-c", LOOK], "script": ["look.py"], "module": ["-m", "tests.look"]}[kind]
    env = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "EXTRA": "ä\nb"}
    how: dict[str, Any] = {"cwd": tmp_path, "env": env, "input": "given", "start_new_session": not options}
    hot, usual = both([sys.executable, *options, *what, "one", "two words"], **how)
    assert (hot.stderr, usual.stderr) == ("", "")
    assert json.loads(hot.stdout) == json.loads(usual.stdout)
    assert json.loads(hot.stdout)["parent"] == os.getpid()


def test_it_has_the_descriptors_that_it_is_passed_and_no_others() -> None:
    reader, writer = os.pipe()
    program = "import keephold, os, sys; os.write(int(sys.argv[1]), b'here'); print(os.listdir('/proc/self/fd'))"
    hot, usual = both([sys.executable, "-c", program, str(writer)], pass_fds=[writer])
    assert hot.stdout == usual.stdout
    os.close(writer)
    with os.fdopen(reader) as said:
        assert said.read() == "herehere"


@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(3)", "sys.exit('no')", "1 / 0", "raise KeyboardInterrupt", "os.kill(os.getpid(), 9)", "os._exit(4)",
        "os.kill(os.getpid(), 15)", "atexit.register(print, 'last')", "print('unflushed', end='')", "os.abort()",
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
        "end = type('End', (), {'__del__': lambda _: print('gone')})()", "sys.exit(300)", "sys.exit(-1)",
        "sys.exit(True)", "sys.stdout.close()", "print('lost'); os.close(1)",
        "import nothing_of_the_kind", "os.kill(os.getpid(), 2); time.sleep(5)", "warnings.warn('careful')",
    ],
)  # fmt: skip
def test_it_ends_the_same(end: str, tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text(f"import atexit, keephold, os, sys, threading, time, warnings\n{end}\n")
    hot, usual = both([sys.executable, "end.py"], cwd=tmp_path)
    assert (hot.returncode, hot.stdout, hot.stderr) == (usual.returncode, usual.stdout, usual.stderr)


@pytest.mark.parametrize("left", ["left = asyncio.sleep(0)", "left = [asyncio.sleep(0)]; left.append(left); del left"])
def test_it_tells_of_a_coroutine_that_nobody_awaited(left: str) -> None:
    for run in both([sys.executable, "-c", f"import asyncio, keephold\n{left}"]):
        assert "coroutine 'sleep' was never awaited" in run.stderr


def test_warm_is_quicker_and_cold_is_a_new_interpreter() -> None:
    program = "import sys; print('keephold.runtime' in sys.modules)"
    assert [run.stdout for run in both([sys.executable, "-c", program])] == ["True\n", "False\n"]


@pytest.mark.parametrize(
    ("command", "code", "printed"),
    [
        ("python -c 'import keephold, sys; print(*sys.argv, *sys.stdin)' a 'b c' | tr a-z A-Z", 0, "-C A B C GIVEN\n"),
        ("python -c 'import keephold, sys; sys.exit(7)'", 7, ""),
        ("python -c 'import keephold, os; os.kill(os.getpid(), 9)' 2>/dev/null; echo $?", 0, "137\n"),
        ("python -c 'import sys; print(sys.flags.isolated)'", 0, "0\n"),
        ("keephold --version | cut -d' ' -f1", 0, "keephold\n"),
        ("keephold nonsense 2>&1 | head -n 1", 0, "Usage: keephold [OPTIONS] COMMAND [ARGS]...\n"),
    ],
)  # fmt: skip
def test_a_shell_starts_programs_warm(command: str, code: int, printed: str, tmp_path: Path) -> None:
    path = f"{warm.launchers(tmp_path)}:{os.environ['PATH']}"
    run = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "PATH": path},
        input="given",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (code, printed), run.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_launched_program_is_signalled_as_its_launcher(number: signal.Signals, tmp_path: Path) -> None:
    waiting = "import keephold, signal; signal.signal(2, signal.SIG_DFL); print('up', flush=True); signal.pause()"
    program = subprocess.Popen([warm.launchers(tmp_path) / "python", "-c", waiting], stdout=subprocess.PIPE, text=True)
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(number)
        assert program.stdout.read() == ""  # no process has the pipe any more
        assert program.wait() == -number
