"""A small correct ACP agent, and broken ones: the argument names the defect. Standard library only.

Prompts: `slow` runs until it is cancelled, `may I` asks for permission, anything else makes a tool call and says two
words.
"""

import json
import os
import sys
import threading
from typing import Any

DEFECT = sys.argv[1] if len(sys.argv) > 1 else "none"
OFFERS = DEFECT != "no-signal"

lock = threading.RLock()
sessions: dict[str, threading.Event] = {}
logged_in: list[str] = []
questions: dict[str, tuple[threading.Event, list[Any]]] = {}


def send(message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def update(session: str, **said: Any) -> None:
    send({"method": "session/update", "params": {"sessionId": session, "update": said}})


def say(session: str, text: str) -> None:
    update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


def signal(session: str, id: Any, reason: str) -> None:
    if OFFERS and DEFECT != "missing-signal":
        params: dict[str, Any] = {"sessionId": session, "promptRequestId": str(id), "stopReason": reason}
        if DEFECT == "wrong-id":
            params["promptRequestId"] = "0"
        if DEFECT == "number-id" and isinstance(id, int):
            params["promptRequestId"] = id
        if DEFECT == "wrong-reason" and reason == "end_turn":
            params["stopReason"] = "refusal"
        send({"method": "_keephold/turn_complete", "params": params})


def ask(session: str, call: str) -> str:
    """The outcome: an option's id, or `cancelled`."""
    options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
    if DEFECT == "bad-option":
        options[0]["kind"] = "perhaps"
    id = f"q{len(questions)}"
    questions[id] = (threading.Event(), [])
    params = {"sessionId": session, "toolCall": {"toolCallId": call, "title": "Write"}, "options": options}
    send({"id": id, "method": "session/request_permission", "params": params})
    questions[id][0].wait()
    outcome: dict[str, Any] = questions[id][1][0]["outcome"]
    return str(outcome.get("optionId", "cancelled"))


def work(session: str, text: str, cancelled: threading.Event) -> str:
    """The turn; its stop reason."""
    call = f"call-{text}"
    if text == "slow":
        say(session, "working")
        if DEFECT == "ignores-cancel":
            threading.Event().wait()
        cancelled.wait()
        say(session, "stopping")
        return "end_turn" if DEFECT == "cancel-is-end" else "cancelled"
    if DEFECT == "update-before-call":
        update(session, sessionUpdate="tool_call_update", toolCallId=call, status="in_progress")
    update(session, sessionUpdate="tool_call", toolCallId=call, title="Work", status="pending")
    if text == "may I":
        outcome = ask(session, call)
        if cancelled.is_set():
            return "cancelled" if DEFECT != "permission-goes-on" else "end_turn"
        if outcome != "allow_once" and DEFECT != "runs-refused":
            update(session, sessionUpdate="tool_call_update", toolCallId=call, status="failed")
            return "end_turn"
    first, second = ("completed", "in_progress") if DEFECT == "status-backwards" else ("in_progress", "completed")
    update(session, sessionUpdate="tool_call_update", toolCallId=call, status=first)
    say(session, "one")
    update(session, sessionUpdate="tool_call_update", toolCallId=call, status=second)
    return "end_turn"


def prompt(id: Any, session: str, text: str) -> None:
    if DEFECT == "dies":
        sys.stderr.write("I have died\n")
        sys.stderr.flush()
        os._exit(7)
    if DEFECT == "never-answers":
        return
    cancelled = sessions[session]
    cancelled.clear()
    reason = work(session, text, cancelled)
    usual = reason != "cancelled"
    if DEFECT == "signal-before-update" and usual:
        signal(session, id, reason)
        say(session, "two")
    else:
        if usual:
            say(session, "two")
        if DEFECT == "cancel-update-late" and not usual:
            signal(session, id, reason)
            say(session, "one more")
        elif not (DEFECT == "response-before-signal" and usual):
            signal(session, id, reason)
    if DEFECT == "double-signal" and usual:
        signal(session, id, reason)
    with lock:  # what comes behind the answer comes before whatever is answered next
        send({"id": id, "result": {"stopReason": reason}})
        if DEFECT == "response-before-signal" and usual:
            signal(session, id, reason)
        if DEFECT == "late-update" and usual:
            say(session, "three")


def initialize(params: dict[str, Any]) -> Any:
    extension: dict[str, Any] = {"_meta": {"keephold/turnComplete": {}}} if OFFERS else {}
    wanted = params["protocolVersion"]
    version = {"any-version": wanted, "text-version": "1"}.get(DEFECT, 1)
    able = {"loadSession": False, **extension}
    methods = [{"id": "key", "name": "A key"}] if DEFECT == "wants-login" else []
    info = {"name": "little", "version": "1"}
    return {"protocolVersion": version, "agentCapabilities": able, "agentInfo": info, "authMethods": methods}


def handle(message: dict[str, Any]) -> None:
    method, id, params = message.get("method"), message.get("id"), message.get("params")
    if method is None:
        if id in questions and isinstance(message.get("result"), dict):
            questions[id][1].append(message["result"])
            questions[id][0].set()
        return
    if not isinstance(params, dict):
        refuse(message, -32602, "Invalid params")
    elif method == "initialize":
        send({"id": id, "result": initialize(params)})
    elif method == "authenticate":
        if params.get("methodId") == "key":
            logged_in.append("key")
            send({"id": id, "result": {}})
        else:
            refuse(message, -32602, "no such method")
    elif DEFECT == "wants-login" and not logged_in:
        refuse(message, -32000, "Authentication required")
    elif DEFECT == "no-model" and method == "session/new":
        refuse(message, -32603, "no model is configured")
    elif method == "session/new":
        name = f"session-{len(sessions)}" if DEFECT != "one-session" else "session"
        sessions[name] = threading.Event()
        send({"id": id, "result": {"sessionId": name}})
    elif method == "session/prompt":
        if params.get("sessionId") not in sessions:
            refuse(message, -32602, "no such session")
            return
        arguments = (id, params["sessionId"], params["prompt"][0]["text"])
        threading.Thread(target=prompt, args=arguments, daemon=True).start()
    elif method == "session/cancel":
        if params.get("sessionId") in sessions:
            sessions[params["sessionId"]].set()
    elif DEFECT == "knows-everything":
        send({"id": id, "result": {}})
    else:
        refuse(message, -32601, "Method not found")


def refuse(message: dict[str, Any], code: int, why: str) -> None:
    if "id" in message or DEFECT == "answers-notifications":
        send({"id": message.get("id"), "error": {"code": code, "message": why}})


def main() -> None:
    if DEFECT == "chatty":
        print("Welcome!", flush=True)
    for line in sys.stdin:
        try:
            message = json.loads(line)
        except ValueError:
            if DEFECT == "fragile":
                raise
            send({"id": None, "error": {"code": -32700, "message": "Parse error"}})
            continue
        if DEFECT == "mute":
            continue
        if isinstance(message, dict) and isinstance(message.get("method", ""), str):
            handle(message)
        else:
            send({"id": None, "error": {"code": -32600, "message": "Invalid request"}})


main()
