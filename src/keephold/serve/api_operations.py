"""Whatever `/api` offers: what each operation takes, and the shape of what it gives. `api.py` says what does them."""

from typing import Any

from keephold.control.control import Forgot, ReplyJson, Revoked, WaitResult
from keephold.control.handle_json import CallGlance, HandleDetails
from keephold.control.open_requests import Decided, OpenRequest
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
_CONVERSATION = _text("conversation", "Only of this conversation.")
_WHERE = _text("conversation", "Of this conversation.", required=True)
_LIMIT = _number("limit", "At most so many.", 1, PAGE)
_AFTER = _text("after", "`next` of the page before.")
_BEFORE = _number("before", "`next` of the page before.")
_OFFSET = _number("offset", "The first byte that is wanted.")
_NAMES = {"type": "array", "items": TEXT, "maxItems": 1000}
_YES = {"type": "boolean"}
_FOREVER = 86_400.0 * 30

OPERATIONS = (
    # Looking at handles
    Operation(
        id="handles",
        path="/api/handles",
        summary="A page of handles.",
        query=(
            _CONVERSATION,
            _choice("state", STATES, "Only those in this state; `live`: all that have not stopped."),
            _choice("kind", KINDS, "Only those of this kind."),
            _text("tool", "Only those of this tool."),
            _text("search", "Only those whose id, tool or uid contains this."),
            _choice("sort", SORTS, "In which order."),
            Parameter("oneshot", _YES, "One-shot calls, too."),
            _AFTER,
            _LIMIT,
        ),
        returns=HandlesPage,
    ),
    Operation(
        id="handle",
        path=_ONE,
        summary="Everything of a handle, but its output; of its journal the end.",
        query=(_text("conversation", "If the path has an id instead of a uid: where to look for it."),),
        returns=HandleDetails,
    ),
    Operation(
        id="output",
        path=f"{_ONE}/output",
        summary="What a handle has printed: a piece, or the lines that hold a pattern.",
        query=(
            _OFFSET,
            _number("limit", "At most so many bytes.", 1, PIECE),
            _number("from_end", "Begin so many bytes before the end instead."),
            _text("pattern", "Lines that contain this text, from `offset` on."),
            _choice("format", ("json", "raw"), "`raw`: the text alone."),
        ),
        text=True,
        returns=OutputPiece,
        errors=(504,),
    ),
    Operation(
        id="follow",
        path=f"{_ONE}/follow",
        summary="What a handle prints and how it changes, as it happens, until it has stopped.",
        query=(_OFFSET,),
        errors=(504,),
    ),
    Operation(
        id="journal",
        path=f"{_ONE}/journal",
        summary="A page of the journal of a handle: steps, with what went in and what came out, newest first.",
        query=(_BEFORE, _LIMIT),
        returns=JournalPage,
    ),
    Operation(
        id="timeline", path=f"{_ONE}/timeline", summary="What has happened to a handle.", returns=list[StoredEvent]
    ),
    Operation(
        id="waiters",
        path=f"{_ONE}/waiters",
        summary="Calls that wait for a handle now.",
        returns=list[Waiter],
    ),
    Operation(id="workflow", path=f"{_ONE}/workflow", summary="How far a workflow is.", returns=Workflow),
    Operation(
        id="glances",
        path="/api/glances",
        summary="The last line and the progress of handles, when they change.",
        query=(_text("uids", "Uids, with commas between them.", required=True),),
    ),
    # Acting upon them
    Operation(
        id="apply",
        path=f"{_ONE}/apply",
        method="POST",
        summary="Send a handle input or keys, or answer its open question, as a person; `null` closes its stdin.",
        body=_body(input={}, keys=_NAMES, secret=_YES),
        returns=ReplyJson,
        errors=(409, 422, 504),
    ),
    Operation(
        id="answer",
        path=f"{_ONE}/answer",
        method="POST",
        summary="Answer the open question of a handle; with `question`, only if it is that one.",
        body=_body(("answer",), answer={}, question=TEXT),
        returns=ReplyJson,
        errors=(409, 422, 504),
    ),
    Operation(
        id="abort",
        path=f"{_ONE}/abort",
        method="POST",
        summary="End a handle. Twice is harmless.",
        body=_body(),
        returns=ReplyJson,
        errors=(409, 504),
    ),
    Operation(
        id="wait",
        path="/api/wait",
        method="POST",
        summary="Wait until handles have stopped: all of some, any of others.",
        body=_body(
            all=_NAMES,
            any=_NAMES,
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
        summary="List the oldest open requests to the user; `stats` counts them all.",
        query=(_LIMIT,),
        returns=list[OpenRequest],
    ),
    Operation(
        id="decide",
        path="/api/requests/{id}",
        method="POST",
        tag="requests",
        summary="Decide an open request.",
        body=_body(
            ("decision",),
            decision={"enum": ["approve", "deny", "edit", "answer", "cancel"]},
            reason=TEXT,
            remember=_YES,
            value={},
        ),
        returns=Decided,
        errors=(409, 422, 504),
    ),
    # Conversations
    Operation(
        id="conversations",
        path="/api/conversations",
        tag="conversations",
        summary="A page of conversations, by name.",
        query=(_AFTER, _LIMIT),
        returns=ConversationsPage,
    ),
    Operation(
        id="conversation",
        path="/api/conversations/{id:path}",
        tag="conversations",
        summary="A conversation and its turns, newest first.",
        query=(_BEFORE, _LIMIT),
        returns=ConversationDetails,
    ),
    Operation(
        id="calls",
        path="/api/calls",
        tag="conversations",
        summary="The calls of a conversation, or of one of its turns.",
        query=(_WHERE, _text("turn", "Only of this turn.")),
        returns=list[CallGlance],
    ),
    Operation(
        id="transcript",
        path="/api/transcript",
        tag="conversations",
        summary="What was said in a conversation.",
        query=(_WHERE, _number("after", "`next` of the page before."), _LIMIT),
        returns=TranscriptPage,
    ),
    Operation(
        id="forget",
        path="/api/forget",
        method="POST",
        tag="conversations",
        summary="Let go of what was said in a conversation.",
        body=_body(("conversation",), conversation=TEXT),
        returns=Forgot,
    ),
    # Events, keys, news, the server itself
    Operation(
        id="events",
        path="/api/events",
        tag="events",
        summary="What happens, as it happens. `Last-Event-ID`, or `after`, goes on where a stream ended.",
        query=(
            _number("after", "The number of the last event that is known."),
            _CONVERSATION,
            _text("uid", "Of a handle."),
        ),
    ),
    Operation(
        id="keys",
        path="/api/keys",
        tag="keys",
        summary="A page of the keys that are open, by their ids; the keys themselves are shown nowhere.",
        query=(_CONVERSATION, _AFTER, _LIMIT),
        returns=KeysPage,
    ),
    Operation(
        id="revoke",
        path="/api/keys/revoke",
        method="POST",
        tag="keys",
        summary="Make the open keys of a conversation worthless.",
        body=_body(("conversation",), conversation=TEXT),
        returns=Revoked,
    ),
    Operation(
        id="notifications",
        path="/api/notifications",
        tag="events",
        summary="News that is queued, and what has become of news.",
        query=(_CONVERSATION, _BEFORE, _LIMIT),
        returns=NotificationsPage,
    ),
    Operation(id="tools", path="/api/tools", tag="server", summary="What can be called.", returns=list[ServedTool]),
    Operation(
        id="stats",
        path="/api/stats",
        tag="server",
        summary="Numbers of the store, and of this server since its start.",
        returns=Stats,
    ),
    Operation(
        id="collect",
        path="/api/collect",
        method="POST",
        tag="server",
        summary="Let go of what retention would let go of now.",
        body=_body(older_than={"type": ["number", "null"], "minimum": 0}, dry_run=_YES, vacuum=_YES),
        returns=dict[str, Any],
    ),
)
"""All of them, in the order in which they are described."""
