"""`keephold` without the second that it takes to start: a process that has imported everything forks for each run.

    python -m tests.acp.agents.warm SOCKET     prints a line when it can be come to, and serves until it is ended
    python -I -S warm.py SOCKET ARGUMENTS…     is one run of `keephold ARGUMENTS…`, with these standard streams

A run is a process of its own, and its exit code is the command's.
"""

import json
import os
import signal
import socket
import sys
from importlib import import_module
from typing import NoReturn

WARM = ("keephold.cli.acp", "keephold.acp.agent", "keephold.agent.conversation", "tests.acp.agents.playing")


def serve(path: str) -> NoReturn:
    """Fork for everyone who comes."""
    for name in WARM:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for the runs
    door = socket.socket(socket.AF_UNIX)
    door.bind(path)
    door.listen()
    print("ready", flush=True)
    while True:
        client, _ = door.accept()
        if os.fork() == 0:
            door.close()
            _be(client)
        client.close()


def _be(client: socket.socket) -> NoReturn:
    from keephold.cli import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    arguments, streams, _, _ = socket.recv_fds(client, 65536, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    code: object = 70
    try:
        main(json.loads(arguments), prog_name="keephold")
    except SystemExit as end:
        code = end.code
    finally:
        client.send(str(code or 0).encode())
        os._exit(0)


def run(path: str, arguments: list[str]) -> int:
    """Have it run there, and wait for its end."""
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(path)
        socket.send_fds(there, [json.dumps(arguments).encode()], [0, 1, 2])
        return int(there.recv(16) or 70)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    sys.exit(run(sys.argv[1], sys.argv[2:]))
