"""The shapes that the API returns, for its OpenAPI description: JSON Schema (`control/handle_json.py`)."""

from typing import Any

Schema = dict[str, Any]


def _object(required: Schema, **further: Any) -> Schema:
    return {"type": "object", "properties": {**required, **further}, "required": list(required)}


def _maybe(*types: str) -> Schema:
    return {"type": [*types, "null"]}


def ref(name: str) -> Schema:
    """A reference to one of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(item: Schema) -> Schema:
    """A list of things of that shape."""
    return {"type": "array", "items": item}


def page(name: str, item: Schema) -> Schema:
    """A page of things, and where the next one begins."""
    return _object({name: list_of(item), "next": _maybe("string", "integer")})


TEXT: Schema = {"type": "string"}
_TIME: Schema = {"type": "number", "description": "Seconds since 1970."}
_MAYBE_TIME: Schema = {**_maybe("number"), "description": "Seconds since 1970."}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_YES: Schema = {"type": "boolean"}
_ANY: Schema = {}
_QUESTION = _object(
    {
        "id": TEXT,
        "key": _maybe("string"),
        "text": TEXT,
        "pre_amble": _maybe("string"),
        "answer_type": _ANY,
        "default": _ANY,
        "secret": _YES,
    }
)
_MAYBE_QUESTION: Schema = {"anyOf": [_QUESTION, {"type": "null"}]}
_FACTS = _object(
    {
        "id": TEXT,
        "uid": TEXT,
        "tool": TEXT,
        "kind": {"enum": ["tool", "agent", "workflow", "timer", "hook", "custom"]},
        "conversation": TEXT,
        "turn": TEXT,
        "stateful": _YES,
        "state": {"enum": ["pending", "running", "waiting", "stopped"]},
        "parked": _YES,
        "owner": {"enum": ["alive", "gone", None]},
        "attempt": _COUNT,
        "next_attempt_at": _MAYBE_TIME,
        "priority": {"type": "integer"},
        "created": _TIME,
        "started": _MAYBE_TIME,
        "stopped": _MAYBE_TIME,
        "deadline": _MAYBE_TIME,
        "ok": _maybe("boolean"),
        "ended_by": _maybe("string"),
        "code": _maybe("string"),
        "message": _maybe("string"),
        "progress": _maybe("object"),
        "question": _MAYBE_QUESTION,
        "here": _YES,
        "terminal": _YES,
        "last_line": _maybe("string"),
        "output_bytes": _maybe("integer"),
        "lingering": _YES,
        "driver": {"enum": ["person", None]},
        "reading": _YES,
    }
)
_ENTRY = _object({"kind": TEXT, "name": TEXT, "ok": _YES, "input": _ANY, "value": _ANY})
_EVENT = _object(
    {
        "seq": _COUNT,
        "at": _TIME,
        "type": TEXT,
        "conversation": TEXT,
        "uid": _maybe("string"),
        "data": {"type": "object"},
    }
)
_NEED = _object(
    {
        "id": TEXT,
        "kind": {"enum": ["permission", "question", "result", "secret"]},
        "conversation": TEXT,
        "tool": TEXT,
        "handle": _maybe("string"),
        "handle_id": _maybe("string"),
        "since": _TIME,
        "action": _maybe("string"),
        "arguments": _maybe("object"),
        "result": _maybe("string"),
        "is_error": _maybe("boolean"),
        "question": _MAYBE_QUESTION,
        "may_remember": _YES,
        "edit": _YES,
        "problem": _maybe("string"),
    }
)

SCHEMAS: dict[str, Schema] = {
    "Error": _object({"error": _object({"code": TEXT, "message": TEXT})}),
    "Question": _QUESTION,
    "Facts": _FACTS,
    "Handle": {
        "allOf": [
            ref("Facts"),
            _object(
                {
                    "call_id": TEXT,
                    "batch": {"type": "integer"},
                    "position": {"type": "integer"},
                    "resources": list_of(TEXT),
                    "metadata": {"type": "object"},
                    "arguments": {"type": "object"},
                    "asked": _MAYBE_TIME,
                    "outcome": _maybe("object"),
                    "exit_code": _maybe("integer"),
                    "signal": _maybe("integer"),
                    "on_timeout": _maybe("string"),
                    "on_cancel": _maybe("string"),
                    "waits": list_of({"type": "object"}),
                    "journal": list_of(ref("Entry")),
                    "journal_entries": _COUNT,
                    "output": _maybe("object"),
                }
            ),
        ]
    },
    "Entry": _ENTRY,
    "Journal": _object({"entries": list_of(ref("Entry")), "count": _COUNT, "next": _maybe("integer")}),
    "Event": _EVENT,
    "Need": _NEED,
    "Reply": {"type": "object", "description": "A handle's state, as a reply shows it (C3)."},
    "Decided": _object({"status": {"enum": ["taken", "again", "gone"]}, "problem": _maybe("string")}),
    "Output": _object(
        {"uid": TEXT, "offset": _COUNT, "next": _COUNT, "total": _COUNT, "missing": _COUNT},
        text=TEXT,
        matches=list_of(_object({"offset": _COUNT, "line": TEXT})),
    ),
    "Waiter": _object({"kind": TEXT, "uid": TEXT, "id": TEXT, "conversation": TEXT, "since": _TIME}),
    "Waited": _object(
        {"completed": list_of({"type": "object"}), "pending": list_of({"type": "object"})},
        timed_out=_YES,
        needs_input=_YES,
    ),
    "Conversation": _object(
        {
            "id": TEXT,
            "handles": _COUNT,
            "live": _COUNT,
            "updated": _MAYBE_TIME,
            "title": _maybe("string"),
            "turn_open": _YES,
            "owner": {"enum": ["alive", "gone", None]},
            "parent": _maybe("string"),
        }
    ),
    "Turns": _object(
        {
            "id": TEXT,
            "title": _maybe("string"),
            "created": _MAYBE_TIME,
            "updated": _MAYBE_TIME,
            "lines": _COUNT,
            "parent": _maybe("string"),
            "turns": list_of(
                _object(
                    {
                        "number": _COUNT,
                        "turn": TEXT,
                        "began": _TIME,
                        "ended": _MAYBE_TIME,
                        "batches": _COUNT,
                        "owner": {"enum": ["alive", "gone", None]},
                    }
                )
            ),
            "next": _maybe("integer"),
        }
    ),
    "Line": _object({"line": _COUNT, "turn": TEXT, "kind": TEXT, "at": _TIME, "body": _ANY}),
    "Key": _object(
        {
            "key_id": TEXT,
            "kind": TEXT,
            "name": TEXT,
            "conversation": TEXT,
            "uid": TEXT,
            "id": TEXT,
            "tool": TEXT,
            "deadline": _MAYBE_TIME,
        }
    ),
    "Notifications": _object(
        {"queued": list_of({"type": "object"}), "history": list_of(ref("Event")), "next": _maybe("integer")}
    ),
    "Tool": _object(
        {
            "name": TEXT,
            "source": TEXT,
            "builtin": _YES,
            "description": TEXT,
            "actions": list_of(TEXT),
            "run": TEXT,
            "parameters": {"type": "object"},
        }
    ),
    "Stats": _object(
        {"handles": {"type": "object"}, "needs": _COUNT, "server": {"type": "object"}, "store": {"type": "object"}}
    ),
    "Revoked": _object({"revoked": _COUNT}),
    "Forgotten": _object({"lines": _COUNT}),
    "Workflow": _object({"steps": list_of({"type": "object"}), "current": list_of(TEXT)}),
}
