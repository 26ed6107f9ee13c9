"""The operations of `/api`: their parameters, and the shapes of their results. `api.py` has the code they run."""

from typing import Any

from keephold.control.control import Forgot, ReplyJson, RetriedCall, Revoked, RevokedPermission, WaitResult
from keephold.control.handle_json import CallGlance, HandleDetails
from keephold.control.output import PIECE, OutputPiece
from keephold.control.posted_requests import ListedPermission, OpenRequest
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
from keephold.turn.decisions import Decided

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

OPERATIONS = (
    # Reading handles
    Operation(
        id="handles",
        path="/api/handles",
        summary="List handles, a page at a time.",
        query=(
            _CONVERSATION,
            _choice(
                "state",
                STATES,
                "Only handles in this state, or that stopped so; `live`: all that have not stopped.",
            ),
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
        ),
        returns=HandlesPage,
    ),
    Operation(
        id="handle",
        path=_ONE,
        summary="Return a handle in full, with the end of its journal, without its output.",
        query=(_text("conversation", "The conversation, if the path has an id instead of a uid."),),
        returns=HandleDetails,
    ),
    Operation(
        id="output",
        path=f"{_ONE}/output",
        summary="Return a piece of a handle's output, or the lines that contain a text.",
        query=(
            _OFFSET,
            _number("limit", "The most bytes to return.", 1, PIECE),
            _number("from_end", "Start this many bytes before the end instead."),
            _text("pattern", "Return the lines from `offset` on that contain this text."),
            _choice("format", ("json", "raw"), "`raw`: the text alone."),
        ),
        text=True,
        returns=OutputPiece,
        errors=(504,),
    ),
    Operation(
        id="follow",
        path=f"{_ONE}/follow",
        summary="Stream a handle's output and state changes until it has stopped.",
        query=(_OFFSET,),
        errors=(504,),
    ),
    Operation(
        id="journal",
        path=f"{_ONE}/journal",
        summary="List the recorded steps of a handle with their inputs and results, newest first.",
        query=(_BEFORE, _LIMIT),
        returns=JournalPage,
    ),
    Operation(
        id="timeline",
        path=f"{_ONE}/timeline",
        summary="List a handle's events, oldest first.",
        returns=list[StoredEvent],
    ),
    Operation(
        id="waiters",
        path=f"{_ONE}/waiters",
        summary="List the calls that wait for a handle now.",
        returns=list[Waiter],
    ),
    Operation(
        id="workflow",
        path=f"{_ONE}/workflow",
        summary="Return a workflow's steps and how far each is.",
        returns=Workflow,
    ),
    Operation(
        id="glances",
        path="/api/glances",
        summary="Stream the last line and the progress of handles as they change.",
        query=(_text("uids", "Uids, separated by commas.", required=True),),
    ),
    # Acting on handles
    Operation(
        id="apply",
        path=f"{_ONE}/apply",
        method="POST",
        summary="Send a handle input or keys, or answer its open question, as the user; `null` closes its stdin.",
        body=_body(input={}, keys=_NAMES, secret=_YES),
        returns=ReplyJson,
        errors=(409, 422, 504),
    ),
    Operation(
        id="answer",
        path=f"{_ONE}/answer",
        method="POST",
        summary="Answer a handle's open question; with `question`, only that question.",
        body=_body(("answer",), answer={}, question=TEXT),
        returns=ReplyJson,
        errors=(409, 422, 504),
    ),
    Operation(
        id="abort",
        path=f"{_ONE}/abort",
        method="POST",
        summary="Abort a handle. A second abort does nothing.",
        body=_body(),
        returns=ReplyJson,
        errors=(409, 504),
    ),
    Operation(
        id="retry",
        path=f"{_ONE}/retry",
        method="POST",
        summary="Repeat a call that failed or was ended, as a new handle; after `crash_loop` with its journal.",
        body=_body(),
        returns=RetriedCall,
        errors=(409,),
    ),
    Operation(
        id="wait",
        path="/api/wait",
        method="POST",
        summary="Wait until handles have stopped (all of some, any of others), have printed a line, or are ready.",
        body=_body(
            all=_NAMES,
            any=_NAMES,
            output=_CONDITIONS,
            ready=_NAMES,
            timeout={"type": ["number", "null"], "minimum": 0, "maximum": _FOREVER},
            conversation=TEXT,
        ),
        patient=True,
        returns=WaitResult,
        errors=(404,),
    ),
    # Open requests
    Operation(
        id="requests",
        path="/api/requests",
        tag="requests",
        summary="List the oldest open requests to the user, of all processes; `stats` counts them all.",
        query=(_LIMIT,),
        returns=list[OpenRequest],
    ),
    Operation(
        id="request",
        path="/api/requests/{id}",
        tag="requests",
        summary="Return one open request.",
        returns=OpenRequest,
    ),
    Operation(
        id="decide",
        path="/api/requests/{id}",
        method="POST",
        tag="requests",
        summary="Decide an open request; with `digest`, only if it still asks about the same.",
        body=_body(
            ("decision",),
            decision={"enum": ["approve", "deny", "edit", "answer", "cancel"]},
            reason=TEXT,
            remember=_YES,
            value={},
            digest={"type": ["string", "null"]},
        ),
        returns=Decided,
        errors=(409, 422, 504),
    ),
    Operation(
        id="permissions",
        path="/api/permissions",
        tag="requests",
        summary="List the standing permissions of all processes: decisions that hold for later calls, too.",
        returns=list[ListedPermission],
    ),
    Operation(
        id="revoke_permission",
        path="/api/permissions/{id}/revoke",
        method="POST",
        tag="requests",
        summary="End a standing permission: the next call asks again.",
        body=_body(),
        returns=RevokedPermission,
        errors=(504,),
    ),
    # Conversations
    Operation(
        id="conversations",
        path="/api/conversations",
        tag="conversations",
        summary="List conversations by name, a page at a time.",
        query=(_AFTER, _LIMIT),
        returns=ConversationsPage,
    ),
    Operation(
        id="conversation",
        path="/api/conversations/{id:path}",
        tag="conversations",
        summary="Return a conversation and its turns, newest first.",
        query=(_BEFORE, _LIMIT),
        returns=ConversationDetails,
    ),
    Operation(
        id="calls",
        path="/api/calls",
        tag="conversations",
        summary="List the calls of a conversation, or of one of its turns.",
        query=(_WHERE, _text("turn", "Only this turn.")),
        returns=list[CallGlance],
    ),
    Operation(
        id="transcript",
        path="/api/transcript",
        tag="conversations",
        summary="Return a conversation's transcript, a page at a time.",
        query=(_WHERE, _number("after", "`next` of the previous page."), _LIMIT),
        returns=TranscriptPage,
    ),
    Operation(
        id="forget",
        path="/api/forget",
        method="POST",
        tag="conversations",
        summary="Delete a conversation's transcript.",
        body=_body(("conversation",), conversation=TEXT),
        returns=Forgot,
    ),
    # Events, keys, notifications, the server itself
    Operation(
        id="events",
        path="/api/events",
        tag="events",
        summary="Stream events as they happen. `Last-Event-ID`, or `after`, resumes where a stream ended.",
        query=(
            _number("after", "The number of the last event you have."),
            _CONVERSATION,
            _text("uid", "Only this handle."),
        ),
    ),
    Operation(
        id="keys",
        path="/api/keys",
        tag="keys",
        summary="List open keys by their ids. Keys themselves are never shown.",
        query=(_CONVERSATION, _AFTER, _LIMIT),
        returns=KeysPage,
    ),
    Operation(
        id="revoke",
        path="/api/keys/revoke",
        method="POST",
        tag="keys",
        summary="Revoke the open keys of a conversation; calls parked on them stop.",
        body=_body(("conversation",), conversation=TEXT),
        returns=Revoked,
    ),
    Operation(
        id="notifications",
        path="/api/notifications",
        tag="events",
        summary="List the queued notifications, and what became of earlier ones.",
        query=(_CONVERSATION, _BEFORE, _LIMIT),
        returns=NotificationsPage,
    ),
    Operation(id="tools", path="/api/tools", tag="server", summary="List the tools.", returns=list[ServedTool]),
    Operation(
        id="stats",
        path="/api/stats",
        tag="server",
        summary="Return the numbers of the store, and of this server since its start.",
        returns=Stats,
    ),
    Operation(
        id="collect",
        path="/api/collect",
        method="POST",
        tag="server",
        summary="Delete what retention would delete now.",
        body=_body(older_than={"type": ["number", "null"], "minimum": 0}, dry_run=_YES, vacuum=_YES),
        returns=dict[str, Any],
    ),
)
"""All operations, in the order of the reference."""
