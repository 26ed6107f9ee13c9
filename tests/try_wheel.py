"""Tries a wheel as a user would: `python3.X tests/try_wheel.py WHEEL CONSTRAINTS`, by the Python it is tried on.

In an empty environment it installs the library, runs a program, asks a command for an extra that is missing, then
installs `serve`, starts the server and calls a tool over MCP. It prints one line. It needs only the standard library;
`UV` in the environment names a `uv` to install with instead of pip.
"""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path
from typing import Any

MOST_PACKAGES, MOST_MB = 20, 60
PROGRAM = """
import asyncio, keephold

@keephold.tool
async def add(a: int, b: int) -> int:
    return a + b

async def main() -> None:
    tools = [add, keephold.command(["echo", "hi"], name="hi")]
    async with keephold.Runtime(tools=tools, store="sqlite:///store.db") as rt, rt.turn() as turn:
        calls = [keephold.ToolCall("1", "add", {"a": 1, "b": 2}), keephold.ToolCall("2", "hi", {})]
        print([response.result for response in await turn.run(calls)])

asyncio.run(main())
"""
CONFIG = '[conversation.tools.greet]\nsource = "local"\ncommand = ["echo", "hello"]\nrun = "unattended"\n'
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "try_wheel", "version": "1"},
}


def main(wheel: Path, constraints: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="keephold-wheel-") as name:
        directory = Path(name)
        bin = directory / "env" / "bin"
        uv = os.environ.get("UV")
        venv.create(directory / "env", with_pip=uv is None)
        if uv is None:
            install = [str(bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        else:
            install = [uv, "pip", "install", "--quiet", "--python", str(bin / "python")]
        before = _packages(directory)
        _run([*install, "--constraint", str(constraints), str(wheel)], directory)
        installed = _packages(directory) - before
        size = sum(file.stat().st_size for file in installed if file.is_file()) / 1e6
        count = sum(file.suffix == ".dist-info" for file in installed)
        assert count <= MOST_PACKAGES and size <= MOST_MB, f"{count} packages, {size:.0f} MB"
        assert _run([str(bin / "python"), "-c", PROGRAM], directory) == r"['3', 'hi\n']"
        refused = _run([str(bin / "keephold"), "serve", "--store", "memory:"], directory, code=2)
        assert refused.count("\n") == 0 and refused.endswith("pip install 'keephold[serve]'"), refused
        began = time.monotonic()
        _run([*install, "--constraint", str(constraints), f"keephold[serve] @ {wheel.as_uri()}"], directory)
        answer = _served(bin, directory)
        took = time.monotonic() - began
    print(
        f"Python {platform.python_version()} on {platform.machine()}: {count} packages, {size:.0f} MB; "
        f"`keephold serve` answered an MCP call ({answer}) {took:.0f} s after the install of `serve` began"
    )


def _packages(directory: Path) -> set[Path]:
    """Return the files of an environment that pip would install, without what Python compiles."""
    return {
        path
        for path in directory.glob("env/lib/python3*/site-packages/**/*")
        if "__pycache__" not in path.parts and not re.match(r"(pip|setuptools)\b", path.relative_to(directory).parts[4])
    }


def _run(command: list[str], directory: Path, code: int = 0) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return (done.stdout or done.stderr).strip()


def _served(bin: Path, directory: Path) -> str:
    """Start the server, call a tool, and return its answer."""
    (directory / "keephold.toml").write_text(CONFIG)
    said = directory / "said"
    command = [str(bin / "keephold"), "serve", "--config", "keephold.toml", "--store", "sqlite:///s.db", "--port", "0"]
    with said.open("w") as file, subprocess.Popen(command, cwd=directory, stdout=file, stderr=file) as server:
        try:
            while (found := re.search(r"keephold at (http://\S+?)/? ", said.read_text())) is None:
                assert server.poll() is None, said.read_text()
                time.sleep(0.05)
            url, token = found[1], (directory / "s.db-token").read_text().strip()
            _, session = _post(url, token, None, {"id": 1, "method": "initialize", "params": INITIALIZE})
            _post(url, token, session, {"method": "notifications/initialized"})
            call = {"id": 2, "method": "tools/call", "params": {"name": "greet", "arguments": {}}}
            answered, _ = _post(url, token, session, call)
            text: str = answered["result"]["content"][0]["text"]
            return text.strip()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def _post(url: str, token: str, session: str | None, message: dict[str, Any]) -> tuple[Any, str | None]:
    headers = {
        "authorization": f"Bearer {token}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    } | ({"mcp-session-id": session} if session else {})
    body = json.dumps({"jsonrpc": "2.0"} | message).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/mcp", body, headers), timeout=60) as response:
        text = response.read().decode()
        last = text.rpartition("data: ")[2]
        return (json.loads(last) if last.strip() else None), response.headers.get("mcp-session-id", session)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
