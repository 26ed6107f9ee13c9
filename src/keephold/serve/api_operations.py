"""The operations of `/api`: their parameters, and the shapes of their results. `api.py` has the code they run."""

from typing import Any

from keephold.control.control import Forgot, ReplyJson, RetriedCall, Revoked, RevokedPermission, WaitResult
from keephold.control.handle_json import CallGlance, HandleDetails
from keephold.control.open_requests import ListedPermission, OpenRequest
from keephold.control.output import PIECE, OutputPiece
from keephold.control.runtime_view import ServedTool, Stats, Waiter
from keephold.control.store_view import (
    KINDS,
    PAGE,
    SORTS,
    STATES,
    ConversationDetails,
    ConversationsPage,
    HandlesPage,
    JournalPage,
    KeysPage,
    NotificationsPage,
    TranscriptPage,
)
from keephold.control.workflows import Workflow
from keephold.serve.operations import Operation, Parameter, Schema
from keephold.store.base import StoredEvent
from keephold.turn.prompts import Decided

TEXT: Schema = {"type": "string"}


def _text(name: str, description: str, *, required: bool = False) -> Parameter:
    return Parameter(name, TEXT, description, required)


def _number(name: str, description: str, least: int = 0, most: int = 2**53) -> Parameter:
    return Parameter(name, {"type": "integer", "minimum": least, "maximum": most}, description)


def _choice(name: str, choices: tuple[str, ...], description: str) -> Parameter:
    return Parameter(name, {"type": "string", "enum": list(choices)}, description)


def _body(required: tuple[str, ...] = (), **properties: Any) -> Schema:
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})


_ONE = "/api/handles/{uid}"
_CONVERSATION = _text("conversation", "Only this conversation.")
_WHERE = _text("conversation", "The conversation.", required=True)
_LIMIT = _number("limit", "The most entries to return.", 1, PAGE)
_AFTER = _text("after", "`next` of the previous page.")
_BEFORE = _number("before", "`next` of the previous page.")
_OFFSET = _number("offset", "The first byte to return.")
_NAMES = {"type": "array", "items": TEXT, "maxItems": 1000}
_CONDITION = {"id": TEXT, "pattern": TEXT}
_CONDITIONS = {
    "type": "array",
    "items": {"type": "object", "properties": _CONDITION, "required": [*_CONDITION], "additionalProperties": False},
    "maxItems": 64,
    "description": "Lines of output to wait for: regular expressions (RE2 syntax).",
}
_YES = {"type": "boolean"}
_FOREVER = 86_400.0 * 30
_NOTHING = _body()
_WAIT = _body(
    all=_NAMES, any=_NAMES, output=_CONDITIONS, ready=_NAMES,
    timeout={"type": ["number", "null"], "minimum": 0, "maximum": _FOREVER}, conversation=TEXT,
)  # fmt: skip
_DECISION = _body(
    ("decision",), decision={"enum": ["approve", "deny", "edit", "answer", "cancel"]}, reason=TEXT, remember=_YES,
    value={}, digest={"type": ["string", "null"]},
)  # fmt: skip


def _get(id: str, path: str, returns: Any, summary: str, **more: Any) -> Operation:
    return Operation(id=id, path=path, returns=returns, summary=summary, **more)


def _post(id: str, path: str, returns: Any, summary: str, body: Schema = _NOTHING, **more: Any) -> Operation:
    return _get(id, path, returns, summary, method="POST", body=body, **more)


OPERATIONS = (
    # Reading handles
    _get("handles", "/api/handles", HandlesPage, "List handles, a page at a time.", query=(
        _CONVERSATION,
        _choice("state", STATES, "Only handles in this state, or that stopped so; `live`: all that have not stopped."),
        _choice("kind", KINDS, "Only handles of this kind."),
        _text("tool", "Only handles of this tool."),
        _text("search", "Only handles whose id, tool or uid contains this text."),
        _text("text", "Only handles whose arguments or output contain this text. A page may be short: see `next`."),
        _number("since", "Only handles that were made then or later, in seconds since 1970."),
        _number("until", "Only handles that were made before, in seconds since 1970."),
        _choice("sort", SORTS, "The order."),
        Parameter("totals", _YES, "Count all that match, by state and end."),
        Parameter("oneshot", _YES, "Include one-shot calls."),
        _AFTER,
        _LIMIT,
    )),
    _get("handle", _ONE, HandleDetails, "Return a handle in full, with the end of its journal, without its output.",
         query=(_text("conversation", "The conversation, if the path has an id instead of a uid."),)),
    _get("output", f"{_ONE}/output", OutputPiece,
         "Return a piece of a handle's output, or the lines that contain a text.", text=True, errors=(504,), query=(
        _OFFSET,
        _number("limit", "The most bytes to return.", 1, PIECE),
        _number("from_end", "Start this many bytes before the end instead."),
        _text("pattern", "Return the lines from `offset` on that contain this text."),
        _choice("format", ("json", "raw"), "`raw`: the text alone."),
    )),
    _get("follow", f"{_ONE}/follow", None, "Stream a handle's output and state changes until it has stopped.",
         query=(_OFFSET,), errors=(504,)),
    _get("journal", f"{_ONE}/journal", JournalPage,
         "List the recorded steps of a handle with their inputs and results, newest first.", query=(_BEFORE, _LIMIT)),
    _get("timeline", f"{_ONE}/timeline", list[StoredEvent], "List a handle's events, oldest first."),
    _get("waiters", f"{_ONE}/waiters", list[Waiter], "List the calls that wait for a handle now."),
    _get("workflow", f"{_ONE}/workflow", Workflow, "Return a workflow's steps and how far each is."),
    _get("glances", "/api/glances", None, "Stream the last line and the progress of handles as they change.",
         query=(_text("uids", "Uids, separated by commas.", required=True),)),
    # Acting on handles
    _post("apply", f"{_ONE}/apply", ReplyJson,
          "Send a handle input or keys, or answer its open question, as the user; `null` closes its stdin.",
          body=_body(input={}, keys=_NAMES, secret=_YES), errors=(409, 422, 504)),
    _post("answer", f"{_ONE}/answer", ReplyJson,
          "Answer a handle's open question; with `question`, only that question.",
          body=_body(("answer",), answer={}, question=TEXT), errors=(409, 422, 504)),
    _post("abort", f"{_ONE}/abort", ReplyJson, "Abort a handle. A second abort does nothing.", errors=(409, 504)),
    _post("retry", f"{_ONE}/retry", RetriedCall,
          "Repeat a call that failed or was ended, as a new handle; after `crash_loop` with its journal.",
          errors=(409,)),
    _post("wait", "/api/wait", WaitResult,
          "Wait until handles have stopped (all of some, any of others), have printed a line, or are ready.",
          body=_WAIT, patient=True, errors=(404,)),
    # Open requests
    _get("requests", "/api/requests", list[OpenRequest],
         "List the oldest open requests to the user, of all processes; `stats` counts them all.", tag="requests",
         query=(_LIMIT,)),
    _get("request", "/api/requests/{id}", OpenRequest, "Return one open request.", tag="requests"),
    _post("decide", "/api/requests/{id}", Decided,
          "Decide an open request; with `digest`, only if it still asks about the same.", tag="requests",
          body=_DECISION, errors=(409, 422, 504)),
    _get("permissions", "/api/permissions", list[ListedPermission],
         "List the standing permissions of all processes: decisions that hold for later calls, too.", tag="requests"),
    _post("revoke_permission", "/api/permissions/{id}/revoke", RevokedPermission,
          "End a standing permission: the next call asks again.", tag="requests", errors=(504,)),
    # Conversations
    _get("conversations", "/api/conversations", ConversationsPage, "List conversations by name, a page at a time.",
         tag="conversations", query=(_AFTER, _LIMIT)),
    _get("conversation", "/api/conversations/{id:path}", ConversationDetails,
         "Return a conversation and its turns, newest first.", tag="conversations", query=(_BEFORE, _LIMIT)),
    _get("calls", "/api/calls", list[CallGlance], "List the calls of a conversation, or of one of its turns.",
         tag="conversations", query=(_WHERE, _text("turn", "Only this turn."))),
    _get("transcript", "/api/transcript", TranscriptPage, "Return a conversation's transcript, a page at a time.",
         tag="conversations", query=(_WHERE, _number("after", "`next` of the previous page."), _LIMIT)),
    _post("forget", "/api/forget", Forgot, "Delete a conversation's transcript.", tag="conversations",
          body=_body(("conversation",), conversation=TEXT)),
    # Events, keys, notifications, the server itself
    _get("events", "/api/events", None,
         "Stream events as they happen. `Last-Event-ID`, or `after`, resumes where a stream ended.", tag="events",
         query=(_number("after", "The number of the last event you have."), _CONVERSATION,
                _text("uid", "Only this handle."))),
    _get("keys", "/api/keys", KeysPage, "List open keys by their ids. Keys themselves are never shown.", tag="keys",
         query=(_CONVERSATION, _AFTER, _LIMIT)),
    _post("revoke", "/api/keys/revoke", Revoked, "Revoke the open keys of a conversation; calls parked on them stop.",
          tag="keys", body=_body(("conversation",), conversation=TEXT)),
    _get("notifications", "/api/notifications", NotificationsPage,
         "List the queued notifications, and what became of earlier ones.", tag="events",
         query=(_CONVERSATION, _BEFORE, _LIMIT)),
    _get("tools", "/api/tools", list[ServedTool], "List the tools.", tag="server"),
    _get("stats", "/api/stats", Stats, "Return the numbers of the store, and of this server since its start.",
         tag="server"),
    _post("collect", "/api/collect", dict[str, Any], "Delete what retention would delete now.", tag="server",
          body=_body(older_than={"type": ["number", "null"], "minimum": 0}, dry_run=_YES, vacuum=_YES)),
)  # fmt: skip
"""All operations, in the order of the reference."""
