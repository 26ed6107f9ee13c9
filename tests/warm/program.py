"""Programs that can be started warm."""

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_SCRIPT = str(Path(sys.executable).with_name("keephold"))
_SERVER = str(Path(__file__).with_name("server.py"))
_IMPORT = re.compile(r"^\s*(import|from)\b.*\b(keephold|mcp)\b", re.MULTILINE)
FOREIGN = (
    "anyio._backends._asyncio", "apsw", "cel_expr_python", "click", "genai_prices.data", "h11", "httpx2", "jinja2",
    "jsonschema_rs", "mcp", "mcp.server", "mcp.client.client", "msgspec", "opentelemetry.trace", "prometheus_client",
    "psutil", "pydantic", "pyghostty", "rich.console", "starlette.applications", "uvicorn", "uvicorn.logging",
    "uvicorn.loops.auto", "uvicorn.protocols.http.auto", "uvicorn.lifespan.on",
)  # fmt: skip
"""What the server imports that is not ours."""
_EMULATOR = ["-P", "-s", "-m", "keephold.worker_process", "keephold.tools.terminal.emulator_process"]
"""Of the workers, only this one may have as much memory as all that is imported takes."""
_LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")


class Program(NamedTuple):
    """What the server needs to know of a program."""

    argv: list[str]
    """All of it, the interpreter first."""
    warnings: list[str]
    kind: str
    """`module`, `code` or `script`."""
    what: str
    rest: list[str]
    cwd: str
    env: dict[bytes, bytes]
    targets: list[int] = [0, 1, 2]  # noqa: RUF012
    """The number of each descriptor that is sent along."""
    new_session: bool = False
    group: int = -1
    ignored: list[int] = []  # noqa: RUF012
    limits: list[tuple[int, tuple[int, int]]] = []  # noqa: RUF012


def planned(argv: list[str], cwd: str, env: dict[bytes, bytes], usual: Mapping[str, str]) -> Program | None:
    """Return a program that can be started warm, None if it is to be started as usual."""
    variables = {os.fsdecode(key): os.fsdecode(env[key]) for key in env}
    if argv[1:6] == _EMULATOR:
        variables |= {key: usual[key] for key in _LOCALE if key in usual}  # it reads and writes frames of bytes
    if not argv or not _environment_known(variables, usual):
        return None
    if argv[0] == _SCRIPT:
        return Program(argv, [], "script", argv[0], argv[1:], cwd, env)
    if argv[0] != sys.executable:
        return None
    rest, warnings = argv[1:], []
    while rest[:1] == ["-W"]:
        warnings.append(rest[1])
        del rest[:2]
    if rest[:2] == ["-P", "-m"]:  # ours is the keephold that is imported, so the directory does not matter
        del rest[0]
    if rest[:5] == _EMULATOR:
        del rest[:2]
    match rest:
        case ["-m", module, *more] if module.split(".")[0] in ("keephold", "tests"):
            return Program(argv, warnings, "module", module, more, cwd, env)
        case ["-c", code, *more] if "keephold" in code:
            return Program(argv, warnings, "code", code, more, cwd, env)
        case [name, *more] if not name.startswith("-") and name != _SERVER and _imports_ours(Path(cwd) / name):
            return Program(argv, warnings, "script", name, more, cwd, env)
    return None


def _imports_ours(script: Path) -> bool:
    try:
        return _IMPORT.search(script.read_text()) is not None
    except (OSError, UnicodeDecodeError):
        return False


_KNOWN = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}


def _environment_known(env: Mapping[str, str], usual: Mapping[str, str]) -> bool:
    """Whether nothing in the environment makes the interpreter another one, or is read by modules we import."""
    mine = {key for key in (*env, *usual) if key.startswith(("PYTHON", "TEXTUAL")) or key in _LOCALE}
    different = {key for key in mine - _KNOWN if env.get(key) != usual.get(key)}
    usual_locale = not different or env.get("LC_ALL") == "C.UTF-8"
    return different <= set(_LOCALE) and usual_locale and not _hides_modules(env, usual)


def _hides_modules(env: Mapping[str, str], usual: Mapping[str, str]) -> bool:
    """Whether a module on their path comes before one that we have imported: tests pretend so that it is missing."""
    imported = {"textual", "pydantic_ai", *(name.partition(".")[0] for name in FOREIGN)}
    theirs, ours = (each.get("PYTHONPATH", "").split(os.pathsep) for each in (env, usual))
    others = [Path(entry) for entry in theirs if entry and entry not in (*ours, sysconfig.get_path("purelib"))]
    return any(entry.stem in imported for place in others if place.is_dir() for entry in place.iterdir())
