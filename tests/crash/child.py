"""The process that is killed: it plays scenes on a store, and dies where it is told to.

    python -m tests.crash.child SOCKET

is the nursery: it imports everything once and forks a child for each request that comes through the socket, with the
pipe for its reports. So a child costs milliseconds, and a thousand of them can be killed in a test.
"""

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from tests.crash.roles import ROLES
from tests.crash.stage import Commits, play
from tests.crash.tools import CONFIG, config_file
from tests.crash.world import World, enter

from keephold.testing.clock import where

PATIENCE = 40.0
"""Seconds in which a run must come to its end, or it is stuck."""


async def _run(request: dict[str, Any], reports: int) -> None:
    world = World(
        Path(request["directory"]),
        run=request["run"],
        clock=request["clock"],
        told=request["told"],
        send=lambda line: os.write(reports, line),
    )
    enter(world)
    commits = Commits(request["kill"], lambda: os.kill(os.getpid(), signal.SIGKILL))
    try:
        async with asyncio.timeout(PATIENCE):
            if request["role"] == "play":
                verdict = await play(request["scenes"], world, commits)
            else:
                verdict = await ROLES[request["role"]](world, request)
    except TimeoutError:
        print("stuck:", *(where(task) for task in asyncio.all_tasks()), sep="\n", file=sys.stderr)
        raise
    world.say("end", verdict=verdict, commits=commits.count)


def _child(request: dict[str, Any], reports: int) -> None:
    code = 1
    try:
        errors = os.open(Path(request["directory"]) / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(errors, 2)
        os.close(errors)
        asyncio.run(_run(request, reports))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _warm_up() -> None:
    """Play once, so that no child has to import anything, or is slow at first."""
    with tempfile.TemporaryDirectory() as directory:
        config_file(Path(directory)).write_text(CONFIG)
        world = World(Path(directory), len)
        enter(world)
        asyncio.run(play(["steps", "command"], world, Commits()))
        world.close()


def nursery(control: socket.socket) -> None:
    """Fork a child for each request. A pid to wait for is answered with how the child ended, a request with its pid."""
    _warm_up()
    gc.freeze()  # or collecting would copy every page in every child
    while True:
        said, pipes, *_ = socket.recv_fds(control, 4096, 1, socket.MSG_CMSG_CLOEXEC)
        if not said:
            return
        words = json.loads(said)
        if isinstance(words, int):
            _, status = os.waitpid(words, 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                control.close()
                _child(json.loads(Path(words).read_text()), pipes[0])
            os.close(pipes[0])
        control.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as control:
        nursery(control)
