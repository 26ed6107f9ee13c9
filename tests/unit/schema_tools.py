"""The tools that the tests of dialects show to every provider."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from keephold.schema.dialects import DIALECTS
from keephold.tools.base import ACTIONS, Action, Invocation, Live, Sink, Tool
from keephold.tools.builtin.await_ import DESCRIPTION, PARAMETERS
from keephold.tools.program import ACTION_PARAMETERS

GOLDEN = Path(__file__).parent.parent / "golden"
WIRE = [dialect for dialect in DIALECTS if dialect != "canonical"]
LOOSE = [dialect for dialect in WIRE if dialect not in ("openai-strict", "gemini")]

Schema = dict[str, Any]


class NeverStarted:
    """These tools are described, not run."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        raise AssertionError("a schema was asked for, not a run")


def tool(name: str, parameters: Schema, *actions: Action, description: str = "", summary: str | None = None) -> Tool:
    return Tool(
        name=name,
        runtime=NeverStarted(),
        parameters=parameters,
        actions=actions,
        description=description,
        summary=summary,
    )


GIT = tool(
    "git",
    {
        "type": "object",
        "properties": {
            "command": {"enum": ["stage", "commit", "rebase"]},
            "args": {"type": "array", "items": {"type": "string"}, "description": "Further words of the command line."},
        },
        "required": ["command"],
    },
    *ACTIONS,
    description="Run git, interactively where it asks.",
)
CARGO_CHECK = tool(
    "cargo_check",
    {"type": "object", "properties": {"package": {"type": "string", "description": "Package to check."}}},
    "spawn",
    "fetch",
    "abort",
    description="Type-check a package. Long text about features, targets and profiles.",
    summary="Type-check a package.",
)
SEARCH = tool(
    "search",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/search",
        "type": "object",
        "title": "Search",
        "properties": {
            "query": {"type": "string", "minLength": 1, "title": "Query"},
            "near": {"$ref": "#/$defs/Place", "description": "Where to look first."},
            "kinds": {"type": "array", "items": {"enum": ["shop", "park"]}, "uniqueItems": True, "default": []},
            "stars": {"enum": [1, 2, 3], "default": 2},
            "radius": {"type": ["number", "null"], "exclusiveMinimum": 0},
            "mode": {"const": "fast"},
            "sort": {"oneOf": [{"const": "near"}, {"const": "new"}, {"type": "null"}]},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "extra": {"description": "Handed on as it is."},
            "span": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "maxItems": 2},
            "mail": {"type": "string", "format": "idn-email"},
        },
        "required": ["query"],
        "additionalProperties": False,
        "$defs": {
            "Place": {
                "type": "object",
                "description": "A place on earth.",
                "properties": {
                    "lat": {"type": "number"},
                    "lon": {"type": "number"},
                    "inside": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
                },
                "required": ["lat", "lon"],
            }
        },
    },
    description="Search the map.",
)
AWAIT = tool("await", PARAMETERS, description=DESCRIPTION)
EDITOR = replace(
    tool(
        "editor",
        {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        *ACTIONS,
        description="Edit a file in a terminal.",
    ),
    source="terminal",
    action_parameters=ACTION_PARAMETERS,
)
TOOLS = [GIT, CARGO_CHECK, SEARCH, AWAIT, EDITOR]
