"""An agent that does what a prompt's text says, written with nothing but the standard library.

The text is JSON: `{"updates": 1000, "signal": true, "late": 2, "ask": true, "reason": "end_turn", "die": true, …}`.
`--offer extension|update|no` says in which form it offers `turn_complete`; with `no` it offers none. `--slow`: it never
answers the first `session/new`; `--nameless`: none with an id; `--no-more`: it opens no session again.
"""

import json
import os
import sys
from typing import Any

offer = sys.argv[sys.argv.index("--offer") + 1] if "--offer" in sys.argv else "extension"
sessions = 0


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def update(session: str, text: str, **more: Any) -> None:
    said = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}, **more}
    send({"method": "session/update", "params": {"sessionId": session, "update": said}})


def signal(session: str, id: Any, reason: str) -> None:
    fields = {"promptRequestId": str(id), "stopReason": reason}
    if offer == "update":
        params = {"sessionId": session, "update": {"sessionUpdate": "turn_complete", **fields}}
        send({"method": "session/update", "params": params})
    else:
        send({"method": "_keephold/turn_complete", "params": {"sessionId": session, **fields}})


def receive() -> dict[str, Any]:
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    message: dict[str, Any] = json.loads(line)
    return message


def permission(session: str, names: list[str]) -> str:
    """Ask, and say what was answered. A cancel may come first, or a withdrawal may be wanted."""
    options = [{"optionId": name, "name": name, "kind": name} for name in names]
    call = {"toolCallId": "call", "title": "Remove everything"}
    params = {"sessionId": session, "toolCall": call, "options": options}
    send({"id": "ask", "method": "session/request_permission", "params": params})
    cancelled = ""
    while True:
        message = receive()
        if message.get("method") == "session/cancel":
            cancelled = "cancel, then "
        if message.get("id") == "ask":
            return cancelled + json.dumps(message.get("result", message.get("error")))


def prompt(id: Any, session: str, order: dict[str, Any]) -> None:
    for number in range(order.get("updates", 0)):
        update(session, str(number))
    if "ask" in order:
        update(session, permission(session, order["ask"]))
    if "request" in order:
        send({"id": "r", "method": order["request"], "params": order.get("params", {})})
        while (answer := receive()).get("id") != "r":
            pass
        update(session, json.dumps(answer.get("result", answer.get("error"))))
    if order.get("hang"):
        while receive().get("method") != "session/cancel":
            pass
        update(session, "stopping")
    if order.get("background"):
        update(session, "meanwhile", _meta={"keephold/background": True})
    if order.get("die"):
        sys.stderr.write("out of cheese\n")
        sys.stdout.flush()
        os._exit(7)
    reason = "cancelled" if order.get("hang") else order.get("reason", "end_turn")
    if offer != "no" and order.get("signal", True) is True:
        signal(session, id, reason)
    if order.get("error"):
        send({"id": id, "error": {"code": -32603, "message": "the model is away"}})
    else:
        send({"id": id, "result": {"stopReason": reason}})
    for number in range(order.get("late", 0)):
        update(session, f"late {number}")
    if order.get("signal") == "late":
        signal(session, id, reason)


def main() -> None:
    global sessions
    while True:
        message = receive()
        method, id, params = message.get("method"), message.get("id"), message.get("params", {})
        if method == "initialize":
            extension: dict[str, Any] = {"_meta": {"keephold/turnComplete": {}}} if offer == "extension" else {}
            kinds: dict[str, Any] = {"list": {}, "close": {}, "resume": {}}
            kinds |= {"turnComplete": {}} if offer == "update" else {}
            abilities = {"loadSession": True, "sessionCapabilities": kinds, **extension}
            version = 2 if "--version-2" in sys.argv else 1
            answer = {"protocolVersion": version, "agentCapabilities": abilities, "agentInfo": {"name": "scripted"}}
            send({"id": id, "result": answer | {"_meta": {"client": params}}})
        elif method == "session/new":
            sessions += 1
            update(f"s{sessions}", "early")
            if "--slow" in sys.argv and sessions == 1:
                continue
            if "--nameless" in sys.argv:
                send({"id": id, "result": {}})
                continue
            send({"id": id, "result": {"sessionId": f"s{sessions}", "_meta": {"cwd": params["cwd"]}}})
            update(f"s{sessions}", "welcome", _meta={"keephold/background": True})
        elif method in ("session/load", "session/resume") and "--no-more" in sys.argv:
            send({"id": id, "error": {"code": -32603, "message": "no"}})
        elif method == "session/load":
            for number in range(3):
                update(params["sessionId"], f"then {number}")
            send({"id": id, "result": None})
        elif method == "session/list":
            page = int(params.get("cursor", 0))
            more = {"nextCursor": str(page + 1)} if page < 2 else {}
            send({"id": id, "result": {"sessions": [{"sessionId": f"p{page}"}], **more}})
        elif method == "session/prompt":
            prompt(id, params["sessionId"], json.loads(params["prompt"][0]["text"]))
        elif method in ("session/close", "session/resume"):
            send({"id": id, "result": {}})
        elif id is not None and method is not None:
            send({"id": id, "error": {"code": -32601, "message": f"Method not found: {method}"}})


main()
