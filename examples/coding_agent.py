"""A coding agent with a build, a dev server and a database shell. Run it: `python examples/coding_agent.py`.

The model starts all three at once. The build fails, so the model mends the file and builds again, while the server and
the shell keep running. It types SQL into the shell, and asks the server over HTTP whether the new row is there. You see
the words and calls of the model, and the answers it gets.

The model is a script, so this needs no API key. To use a provider, `pip install 'keephold[agent]'`, and replace
`script.converse(rt, TASK)` by `rt.conversation(model="anthropic:claude-sonnet-4-5").prompt(TASK)`.
"""

import asyncio
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.request import urlopen

import keephold
from keephold.testing import Says, ScriptedModel

TASK = "Get the project to build, start it, and add the note `buy milk` to its database."
BACKGROUND: tuple[Literal["spawn", "fetch", "abort"], ...] = ("spawn", "fetch", "abort")
SERVER = """\
import http.server, sqlite3

class Notes(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        notes = sqlite3.connect("notes.db").execute("SELECT text FROM notes").fetchall()
        self.send_response(200)
        self.end_headers()
        self.wfile.write("\\n".join(text for text, in notes).encode())

server = http.server.HTTPServer(("127.0.0.1", 0), Notes)
print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
"""
SHELL = """\
import sqlite3
database = sqlite3.connect("notes.db", isolation_level=None)
database.execute("CREATE TABLE IF NOT EXISTS notes (text)")
while True:
    for row in database.execute(input("sql> ")):
        print(row)
"""


def tools_in(project: Path) -> list[keephold.Tool]:
    """Return the agent's tools. In your project they would run `make`, `npm run dev` and `psql`."""
    python, place = sys.executable, str(project)

    @keephold.tool
    def edit(path: str, old: str, new: str) -> str:
        """Replace text in a file of the project."""
        file = project / path
        if not file.resolve().is_relative_to(project.resolve()) or file.read_text().count(old) != 1:
            raise keephold.ToolError(f"`old` must occur once in {path}, a file of the project")
        file.write_text(file.read_text().replace(old, new))
        return f"{path} changed"

    @keephold.tool
    def get(url: str) -> str:
        """Return the body of a page of the dev server."""
        if not url.startswith("http://127.0.0.1:"):
            raise keephold.ToolError("only pages of the dev server, at http://127.0.0.1:PORT/")
        with urlopen(url) as response:
            return str(response.read().decode())

    build = keephold.command([python, "-m", "compileall", "-q", "."], name="build", cwd=place, actions=BACKGROUND)
    dev = keephold.command(
        [python, "server.py"], name="dev", cwd=place, actions=BACKGROUND, ready=r"listening on \S+", on_turn_end="abort"
    )
    shell = keephold.terminal(
        [python, "shell.py"], name="database", description="An SQL shell.", cwd=place, input="line", on_turn_end="abort"
    )
    patient = replace(shell.spawn, settle_ms=5000, settle_max_ms=60_000)  # replies come when the shell reads
    return [edit, get, build, dev, replace(shell, spawn=patient)]


def model() -> ScriptedModel:
    started = [("build", {"spawn": "build"}), ("dev", {"spawn": "web"}), ("database", {"spawn": "db"})]
    mended = {"path": "report.py", "old": "retrun", "new": "return"}
    note = "INSERT INTO notes VALUES ('buy milk') RETURNING text"
    return ScriptedModel(
        [
            Says("I start everything.", [*started, ("await", {"any": ["build", "web"]})]),
            Says("A typo. I mend it.", [("edit", mended), ("handle_apply", {"id": "db", "input": note})]),
            Says("Again.", [("build", {"spawn": "again"}), ("await", {"all": ["again"], "ready": ["web"]})]),
            Says("It builds. Where is the server?", [("handle_fetch", {"id": "web"})]),
            lambda heard: Says("I ask it.", [("get", {"url": re.findall(r"http://[\d.:]+/", heard.text)[0]})]),
            lambda heard: f"The project builds and runs, and its server shows: {heard.text}",
        ]
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        project = Path(directory)
        (project / "server.py").write_text(SERVER)
        (project / "shell.py").write_text(SHELL)
        (project / "report.py").write_text("def total(notes):\n    retrun len(notes)\n")
        script = model()
        async with keephold.Runtime(tools_in(project)) as rt:
            await script.converse(rt, TASK)
    for heard, said in zip(script.seen, script.said, strict=True):
        print(f"{heard.role}: {heard.text}\nmodel: {said.text}")
        print("".join(f"  {call.name} {call.arguments}\n" for call in said.calls))


if __name__ == "__main__":
    asyncio.run(main())
