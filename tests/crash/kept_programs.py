"""Programs that are kept (R7): a counter, a dev server, a build, a REPL, an editor and others, and their settings."""

import json
import socket
import sys
from pathlib import Path

from tests.soak import tries

TARGETS = tries(50, soak=3000)
PROGRAMS = {
    "count.py": """
        import os, sys, time
        number = 0
        while not os.path.exists("stop"):
            print("line", number, flush=True)
            number += 1
            time.sleep(0.003)
        sys.exit(7)
    """,
    "server.py": """
        import socket
        listening = socket.create_server(("127.0.0.1", 0))
        with open("port.new", "w") as file:
            file.write(str(listening.getsockname()[1]))
        import os
        os.rename("port.new", "port")
        while True:
            peer, _ = listening.accept()
            with peer:
                asked = peer.recv(100).decode()
                print("request", asked, flush=True)
                peer.sendall(b"done")
            if asked == "end":
                break
    """,
    "Makefile": """
        TARGETS := $(shell seq TARGETS)
        .PHONY: all $(TARGETS)
        all: $(TARGETS)
        $(TARGETS):
        \t@sleep 0.1; echo built $@
    """,
    "quit.sh": "read line; touch got; while [ ! -e go ]; do sleep 0.05; done; exit 9",
    "end.sh": "while [ ! -e end ]; do sleep 0.05; done; seq 1000; exit 5",
    "die.sh": "while [ ! -e end ]; do sleep 0.05; done; kill -9 $$",
    "form.sh": """while [ ! -e end ]; do sleep 0.05; done; echo '{"type":"stopped","result":{"Ok":"by form"}}'""",
    "query.py": """
        import os, select, sys, time, tty
        from pathlib import Path
        here = Path(__file__).parent
        tty.setcbreak(0)
        for number in range(2):
            os.write(1, b"\\x1b[6n")
            if number:
                (here / "asked").touch()
            print("reply", number, os.read(0, 100), end="\\r\\n", flush=True)
            while not number and not (here / "ask").exists():
                time.sleep(0.01)
        more = os.read(0, 100) if select.select([0], [], [], 0.5)[0] else b""
        print("reply", 2, more, flush=True)
    """,
    "call.sh": 'while [ ! -e end ]; do sleep 0.05; done; grep -c xxxx "$KEEPHOLD_CALL_FILE"',
    "secret.py": """
        import getpass
        print("hello", getpass.getpass("Secret: "), flush=True)
        input("more? ")
    """,
}
PYTHON = json.dumps(sys.executable)
CONFIG = f"""
[conversation.tools."*"]
run = "unattended"
on_crash = "keep"
spawn.stateful = true

[conversation.tools.count]
source = "local"
command = [{PYTHON}, "count.py"]

[conversation.tools.server]
source = "local"
command = [{PYTHON}, "server.py"]

[conversation.tools.build]
source = "local"
command = ["make", "-j2"]

[conversation.tools.script]
source = "local"
command = ["sh", "{{{{ tool.arguments.file }}}}"]
parameters.file.type = "string"
parameters.text.type = "string"

[conversation.tools.short]
source = "local"
command = ["sh", "-c", "setsid sleep 300 & sleep 300"]
keep_secs = 0.2

[conversation.tools.cat]
source = "local"
command = ["cat"]
spawn.stdin = true

[conversation.tools.quit]
source = "local"
command = ["sh", "quit.sh"]
spawn = {{ stdin = true, settle_ms = 60000, settle_max_ms = 60000 }}

[conversation.tools.single]
source = "local"
command = ["cat"]
spawn.stdin = true
max_running = 1
scheduling = "serial"
resources = ["thing"]

[conversation.tools.repl]
source = "terminal"
command = [{PYTHON}, "-q"]

[conversation.tools.secret]
source = "terminal"
command = [{PYTHON}, "secret.py"]

[conversation.tools.vim]
source = "terminal"
command = ["vim", "-u", "NONE", "-n", "text"]

[conversation.tools.sh]
source = "terminal"
command = ["sh"]
env.PS1 = "$ "
"""


def write_programs(directory: Path) -> None:
    """Write the programs that the tools of `CONFIG` start."""
    for name, text in PROGRAMS.items():
        lines = text.removeprefix("\n").split("\n")
        indent = len(lines[0]) - len(lines[0].lstrip(" "))
        (directory / name).write_text(
            "\n".join(line[indent:] for line in lines).replace("\\t", "\t").replace("seq TARGETS", f"seq {TARGETS}")
        )


def ask(directory: Path, text: str) -> None:
    """Send the dev server a request."""
    port = int((directory / "port").read_text())
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(text.encode())
        assert peer.recv(100) == b"done"


def numbers(text: str, word: str) -> list[str]:
    """Return the numbers of the lines that begin with this word."""
    return [line.split(" ")[1] for line in text.splitlines() if line.startswith(f"{word} ")]
