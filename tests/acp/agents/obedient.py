"""An agent that does what it is told, step by step, written with nothing but the standard library.

A prompt is a JSON list of steps: `["say", text]`, `["tool", title]`, `["plan", done, total]`, `["ask", options]`,
`["until", file]`, `["hang"]`, `["start"]`, `["die"]` and `["end", reason]`. What it was permitted it says. Of itself
and of what it starts it writes the process ids into the file `pids`. It ends when its input does, unless it hangs.
"""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    message: dict[str, Any] = json.loads(line)
    return message


def update(kind: str, **fields: Any) -> None:
    send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": kind, **fields}})


def say(text: str) -> None:
    update("agent_message_chunk", content={"type": "text", "text": text})


def ask(options: list[dict[str, str]]) -> None:
    call = {"toolCallId": "t", "title": "rm -rf /"}
    send(id="ask", method="session/request_permission", params={"sessionId": "s", "toolCall": call, "options": options})
    while (answer := receive()).get("id") != "ask":
        pass
    say(json.dumps(answer.get("result", answer.get("error"))))


def started(pid: int) -> None:
    with Path("pids").open("a") as file:
        file.write(f"{pid}\n")


def play(steps: list[list[Any]]) -> str:
    """Why it ended."""
    for name, *given in steps:
        match name:
            case "say":
                say(*given)
            case "tool":
                update("tool_call", toolCallId="t", title=given[0], status="pending")
            case "plan":
                done, total = given
                kinds = ["completed"] * done + ["pending"] * (total - done)
                update("plan", entries=[{"content": "x", "priority": "low", "status": kind} for kind in kinds])
            case "ask":
                ask(*given)
            case "until":
                while not Path(given[0]).exists():
                    if select.select([sys.stdin], [], [], 0.005)[0]:
                        receive()
            case "hang":
                time.sleep(1000)
            case "start":
                started(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
            case "die":
                sys.stderr.write("out of cheese\n")
                os._exit(7)
            case "end":
                return str(given[0])
    return "end_turn"


started(os.getpid())
while True:
    asked = receive()
    match asked.get("method"):
        case "initialize":
            send(id=asked["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
        case "session/new":
            send(id=asked["id"], result={"sessionId": "s"})
        case "session/prompt":
            words = asked["params"]["prompt"][0]["text"]
            send(id=asked["id"], result={"stopReason": play(json.loads(words))})
