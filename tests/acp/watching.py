"""What a client may rely on of `keephold acp`, checked message by message (X1, X2, X4).

A `Watch` is told every message in the order in which it is sent or read. What is wrong is in `wrong`, with the message
at which it showed. Nothing here knows the agent's code: it says what docs/reference/acp.md says.
"""

from typing import Any

Message = dict[str, Any]
Id = str | int
FINAL = ("completed", "failed")
_RANK = {"pending": 0, "in_progress": 1, "completed": 2, "failed": 2}
OPENING = ("session/load", "session/resume")


class Seen:
    """One session, as its client sees it."""

    def __init__(self) -> None:
        self.open = False
        """It was opened and its closing has not been answered."""
        self.opening: set[Id] = set()
        """Loads and resumes that are not answered."""
        self.prompts: dict[Id, str | None] = {}
        """Those that are not answered, and of each how its turn ended, once that was told."""
        self.calls: dict[str, dict[str, Any]] = {}
        """By id: the status, what was called, and whether it was seen to begin (`ran_here`)."""
        self.opened_by = 0
        """When the request was sent that has opened it: an earlier one may be answered after it."""
        self.said = False
        """A turn of it has ended as turns should."""
        self.deleted = False

    @property
    def left_open(self) -> list[dict[str, Any]]:
        """Calls that are not over."""
        return [call for call in self.calls.values() if call["status"] not in FINAL]


class Watch:
    """Everything that one process of the agent was told and says."""

    def __init__(self, sessions: dict[str, Seen] | None = None) -> None:
        self.sessions: dict[str, Seen] = {} if sessions is None else sessions
        self.wrong: list[str] = []
        self.log: list[tuple[str, Any]] = []
        self.asked: dict[Id, Message] = {}
        """Our requests that are not answered."""
        self._sent_at: dict[Id, int] = {}
        self.answered: dict[Id, Message] = {}
        self.garbage = 0
        """Lines for which an error without an id may come."""
        self.leaving = False
        """The client goes, or the process is ended: nothing is taken back any more."""
        self.questions: dict[Id, Message] = {}
        """The agent's requests that are not answered and not taken back."""
        self.crossed: set[Id] = set()
        """Those that we have answered: they may be taken back before the agent knows."""

    def _bad(self, what: str) -> None:
        self.wrong.append(f"message {len(self.log)}: {what}")

    # What the client says

    def sent(self, message: Message) -> None:
        self.log.append(("out", message))
        method, id = message.get("method"), message.get("id")
        if method is None:
            if id in self.questions:
                del self.questions[id]
                self.crossed.add(id)
            return
        if id is None:
            return
        self.asked[id] = message
        self._sent_at[id] = len(self.log)
        session = self._session(message)
        if session is not None and method in OPENING:
            session.opening.add(id)
        elif session is not None and method == "session/prompt":
            session.prompts[id] = None

    def _session(self, message: Message) -> Seen | None:
        params = message.get("params")
        id = params.get("sessionId") if isinstance(params, dict) else None
        return self.sessions.get(id) if isinstance(id, str) else None

    # What the agent says

    def heard(self, message: Message) -> None:
        self.log.append(("in", message))
        method = message.get("method")
        if method is None:
            self._answer(message)
        elif "id" in message:
            self._question(message)
        elif method == "session/update":
            self._update(message["params"]["sessionId"], message["params"]["update"])
        elif method == "_keephold/turn_complete":
            self._complete(message["params"])
        elif method == "$/cancel_request":
            id = message["params"]["requestId"]
            if self.questions.pop(id, None) is None and id not in self.crossed:
                self._bad("takes back a request that is not open")
            self.crossed.discard(id)
        else:
            self._bad(f"unknown: {method}")

    def _answer(self, message: Message) -> None:
        id = message.get("id")
        if id is None:
            self.garbage -= 1
            if self.garbage < 0:
                self._bad("an error for a line that was good")
            return
        request = self.asked.pop(id, None)
        if request is None:
            self._bad(f"request {id!r} is answered {'twice' if id in self.answered else 'and was never made'}")
            return
        self.answered[id] = message
        method, session, ok = request["method"], self._session(request), "result" in message
        if method == "session/new" and ok:
            self.sessions.setdefault(message["result"]["sessionId"], Seen()).open = True
        if session is None:
            return
        session.opening.discard(id)
        if method in OPENING and ok:
            session.open, session.opened_by = True, max(session.opened_by, self._sent_at[id])
        elif method in ("session/close", "session/delete") and ok:
            session.open = session.opened_by > self._sent_at[id]
            session.deleted = session.deleted or method == "session/delete"
        elif method == "session/prompt":
            self._prompt_answered(id, message, session)

    def _prompt_answered(self, id: Id, message: Message, session: Seen) -> None:
        told = session.prompts.pop(id)
        error = message.get("error")
        if error is None:
            reason = message["result"]["stopReason"]
        elif error["code"] == -32603:
            reason = "error"
        else:
            reason = None  # there was no turn
        if told != reason:
            self._bad(f"prompt {id!r} is answered {reason!r} ({error}), and its turn_complete said {told!r}")
        if error is not None and error["code"] not in (-32603, -32600, -32002, -32602):
            self._bad(f"prompt {id!r} is answered {error}")

    def _complete(self, params: dict[str, Any]) -> None:
        session = self.sessions.get(params["sessionId"])
        found = [id for id in (session.prompts if session else ()) if str(id) == params["promptRequestId"]]
        if session is None or len(found) != 1:
            self._bad(f"turn_complete of no prompt that is open: {params}")
            return
        if session.prompts[found[0]] is not None:
            self._bad(f"turn_complete twice: {params}")
        session.prompts[found[0]] = params["stopReason"]
        session.said = session.said or params["stopReason"] == "end_turn"
        for call in session.left_open:
            if call["input"].get("action") != "spawn":
                self._bad(f"the turn is complete and a call is not: {call}")
        for question in self.questions.values():
            if question["params"]["sessionId"] == params["sessionId"] and not self.leaving:
                self._bad(f"the turn is complete and a request is open: {question}")

    def _question(self, message: Message) -> None:
        self.questions[message["id"]] = message
        session = self._session(message)
        if session is None or not (session.open or session.opening):
            self._bad("a request for a session that is not open")
        elif message["method"] == "session/request_permission":
            call = session.calls.get(message["params"]["toolCall"]["toolCallId"])
            if call is None or call["status"] in FINAL:
                self._bad(f"permission is asked for a call that is not open: {call}")

    def _update(self, id: str, update: dict[str, Any]) -> None:
        session = self.sessions.get(id)
        if session is None:
            self._bad("an update for a session that nobody knows")
            return
        marked = (update.get("_meta") or {}).get("keephold/background") is True
        if not session.open and not session.opening:
            self._bad(f"an update for a session that is not open: {update}")
        running = any(reason is None for reason in session.prompts.values())
        if not marked and not running and not session.opening:
            self._bad(f"an update between turns that is not marked: {update}")
        if update["sessionUpdate"] == "tool_call":
            known = session.calls.get(update["toolCallId"])
            if known is not None and not session.opening:
                self._bad(f"a call is made twice: {update}")
            if update["status"] != "pending":
                self._bad(f"a call begins otherwise than pending: {update}")
            given = update.get("rawInput")
            session.calls[update["toolCallId"]] = {
                "status": "pending",
                "input": given if isinstance(given, dict) else {},
                "title": update.get("title"),
                "id": update["toolCallId"],
            }
        elif update["sessionUpdate"] == "tool_call_update":
            self._call_update(session, update)

    def _call_update(self, session: Seen, update: dict[str, Any]) -> None:
        call = session.calls.get(update["toolCallId"])
        if call is None:
            self._bad(f"an update of a call that was never made: {update}")
            return
        if call["status"] in FINAL:
            self._bad(f"an update of a call that is over: {update}")
        status = update.get("status", call["status"])
        if _RANK[status] < _RANK[call["status"]] or ("status" in update and status == call["status"]):
            self._bad(f"from {call['status']} to {status}: {update}")
        if status == "in_progress" and call["status"] == "pending":
            call["ran_here"] = not session.opening
        call["status"] = status
