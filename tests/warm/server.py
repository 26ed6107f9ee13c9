"""The process that is forked: imports everything, and becomes the programs that it is told of (see `__init__.py`).

Run as a program. A fork leaves `_serve`, becomes the program and ends: at the end of this file.
"""

import atexit
import ctypes
import gc
import importlib
import io
import locale
import marshal
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import sys
import threading
import time
import types
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[2])
from tests.warm.program import FOREIGN, Program, planned  # noqa: E402

_USUAL = dict(os.environ)
_USUAL_PATH = sys.path[1:]
_USUAL_PYTHONPATH = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
_USUAL_FILTERS = list(warnings.filters)
_NOT_OURS = ("keephold.testing", "keephold.adapters")  # import pytest or what else most programs do not
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14


def _import_everything() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in FOREIGN:
            with suppress(ImportError):
                importlib.import_module(name)
        import keephold

        for module in pkgutil.walk_packages(keephold.__path__, "keephold."):
            if not module.name.startswith(_NOT_OURS) and not module.name.endswith("__main__"):
                with suppress(ImportError):  # an extra that is not installed
                    importlib.import_module(module.name)


def _serve(control: socket.socket, door: socket.socket) -> Program:
    """Fork for every request. Returns in the fork only, which has become the program but not run it."""
    while True:
        for ready in select.select([control, door], [], [])[0]:
            program = _requested(control) if ready is control else _launched(door)
            if program is not None:
                control.detach()  # closed like every other descriptor
                door.detach()
                return program


def _requested(control: socket.socket) -> Program | None:
    """Fork a program that becomes a child of the process that asks for it (which is a subreaper meanwhile)."""
    message, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 64)
    if not message:
        os._exit(0)
    parent = os.getppid()
    begin, begun = os.pipe()
    told, tell = os.pipe()
    middle = os.fork()
    if not middle:
        if child := os.fork():
            os.write(tell, str(child).encode())
            os._exit(0)
        os.close(begun)
        os.read(begin, 1)  # until it has its parent
        assert os.getppid() == parent, "nobody has adopted the program"
        program = Program(*marshal.loads(message))
        _become(program, descriptors, tell)
        return program
    for fd in (begin, tell, *descriptors):
        os.close(fd)
    with suppress(ChildProcessError):  # as SIGCHLD is ignored: it has ended
        os.waitpid(middle, 0)
    os.close(begun)
    pid = os.read(told, 32)
    os.read(told, 1)  # until it is the program, as after exec
    os.close(told)
    control.send(pid)
    return None


def _launched(door: socket.socket) -> Program | None:
    """Fork a program for `launcher.py`, and a process that passes signals on to it and its end back."""
    client, _ = door.accept()
    if os.fork():
        client.close()
        return None
    message, descriptors, _, _ = socket.recv_fds(client, 1 << 20, 3)
    argv, cwd, env = marshal.loads(message)
    program = planned(argv, cwd, env, _USUAL)
    if program is None:
        client.send(b"cold")
        os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        client.detach()
        _become(program, descriptors, os.open(os.devnull, os.O_RDONLY))
        return program
    for fd in descriptors:
        os.close(fd)
    ended = os.pidfd_open(child)
    while ended not in select.select([client.fileno(), ended], [], [])[0]:
        number = client.recv(16)
        os.kill(child, int(number) if number else signal.SIGKILL)
        if not number:  # the launcher was killed
            os._exit(0)
    client.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
    os._exit(0)


def _become(program: Program, descriptors: list[int], tell: int) -> None:
    """Be in everything but the modules what a new process would be; then close `tell`."""
    tell = _set_descriptors(descriptors, program.targets, tell)
    os.environb.clear()
    os.environb.update(program.env)
    os.chdir(program.cwd)
    if program.new_session:
        os.setsid()
    if program.group >= 0:
        os.setpgid(0, program.group)
    for number, limit in program.limits:
        with suppress(ValueError):
            resource.setrlimit(number, limit)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in program.ignored:
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGINT not in program.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _set_proc(program.argv, program.env)
    os.close(tell)
    with suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "")
    time.tzset()
    _open_streams()
    warnings.filters[:] = _USUAL_FILTERS  # type: ignore[index]
    sys.warnoptions[:] = program.warnings
    for option in program.warnings:
        warnings._setoption(option)  # type: ignore[attr-defined]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.orig_argv[:] = program.argv
    theirs = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*theirs, *(_USUAL_PATH[len(_USUAL_PYTHONPATH) :])]


def _set_descriptors(given: list[int], targets: list[int], keep: int) -> int:
    """Have each descriptor at its number, and no others but `keep`, whose new number is returned."""
    top = max(*given, *targets, keep) + 1
    for at, fd in enumerate((*given, keep)):
        os.dup2(fd, top + at, inheritable=False)
    for at, target in enumerate(targets):
        os.dup2(top + at, target, inheritable=True)
    keep = top + len(given)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in (*targets, keep):
            with suppress(OSError):  # that of the listing itself
                os.close(int(name))
    return keep


def _open_streams() -> None:
    surrogates = locale.setlocale(locale.LC_CTYPE) in ("C", "POSIX", "C.UTF-8", "C.utf8")
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        buffer = open(fd, "rb" if fd == 0 else "wb", 0 if unbuffered and fd else -1, closefd=False)  # noqa: SIM115
        setattr(getattr(buffer, "raw", buffer), "name", f"<{name}>")  # noqa: B010
        stream = io.TextIOWrapper(
            buffer,
            encoding="utf-8",
            errors="backslashreplace" if fd == 2 else "surrogateescape" if surrogates else "strict",
            newline=None if fd == 0 else "\n",
            line_buffering=not unbuffered and (fd == 2 or buffer.isatty()),
            write_through=unbuffered and fd > 0,
        )
        stream.mode = "r" if fd == 0 else "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class _Map(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
            "arg_start", "arg_end", "env_start", "env_end", "auxv",
        )),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )  # fmt: skip


_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = _libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_kept: list[Any] = []
"""This module, once another is `__main__`."""


def _set_proc(argv: list[str], env: dict[bytes, bytes]) -> None:
    """Show a program's own arguments and environment in /proc, by which processes are found and recognised."""
    arguments = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(key + b"=" + value + b"\0" for key, value in env.items())
    start = _libc.malloc(len(arguments + variables) + 1)  # not freed when Python ends: the kernel reads it still
    ctypes.memmove(start, arguments + variables + b"\0", len(arguments + variables) + 1)
    middle, end = start + len(arguments), start + len(arguments + variables)
    fields = [b"", b"", b"", *Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()]
    now = [0, *(int(field) if field.strip(b"-").isdigit() else 0 for field in fields[1:])]
    wanted = _Map(
        start_code=now[26], end_code=now[27], start_stack=now[28], start_data=now[45], end_data=now[46],
        start_brk=now[47], brk=_libc.sbrk(0), arg_start=start, arg_end=middle, env_start=middle, env_end=end,
        exe_fd=0xFFFFFFFF,
    )  # fmt: skip
    done = _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(wanted), ctypes.sizeof(wanted), 0)
    assert done == 0, os.strerror(ctypes.get_errno())


def _without_our_frames(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _run(program: Program) -> None:
    _kept.append(sys.modules["__main__"])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = __builtins__
    sys.excepthook = _without_our_frames
    match program.kind:
        case "module":
            sys.path.insert(0, program.cwd)
            sys.argv = ["-m", *program.rest]
            runpy._run_module_as_main(program.what)  # type: ignore[attr-defined]
        case "code":
            sys.path.insert(0, "")
            sys.argv = ["-c", *program.rest]
            exec(compile(program.what, "<string>", "exec"), vars(main))
        case "script":
            path = str(Path.cwd() / program.what)
            sys.path.insert(0, str(Path(path).resolve().parent))
            sys.argv = [program.what, *program.rest]
            vars(main)["__file__"] = path
            exec(compile(Path(path).read_bytes(), path, "exec"), vars(main))


def _end(code: object) -> None:
    """End as Python does, but leave the modules as they are: taking them apart copies each page that they are on, and
    was nine tenths of the time that a short program took. Returns if Python has to end by itself."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    main = vars(sys.modules["__main__"])
    main.update({name: None for name in main if name != "__builtins__"})
    gc.collect()  # coroutines that nobody awaited are heard of
    with suppress(Exception):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if code is None or isinstance(code, int):
            os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, and the end of them ends this
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for programs
    _import_everything()
    gc.collect()
    gc.freeze()
    _set_proc(sys.orig_argv, dict(os.environb))  # fails here where the kernel does not allow it
    _control, _door = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    _control.send(b"ready")
    try:
        _run(_serve(_control, _door))
        _code: object = 0
    except SystemExit as _error:
        _code = _error.code
    _end(_code)
    sys.exit(_code)  # type: ignore[arg-type]
