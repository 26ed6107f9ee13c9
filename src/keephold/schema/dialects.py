"""Renders a tool's schema for a provider (G3): one flat object, in the keywords that the provider's dialect has.

Providers do not support a union at the root, so every dialect but `canonical` shows a stateful tool as one object with
an `action` enum. Every other property lists its actions in its description, and `arguments` enforces the rest. Keywords
that a dialect lacks are left out and, where that helps a model, described in words. A wire schema is never narrower
than the canonical one, with these exceptions:

- `openai-strict` and `gemini` cannot express "any value" or "an object of any keys". Apply's `input` becomes a string
  (`arguments.decode_input` reads it), an untyped property a scalar, a free object its JSON text (`ArgumentCheck`
  decodes it).
- Every `$ref` is replaced by its target. A recursive one becomes a free object, or any value if it is not an object;
  the check uses the whole schema and stays exact.
- `not`, `if`, `dependent…`, `contains`, `patternProperties` and unknown keywords are left to the check.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import msgspec

from keephold.schema.canonical import canonical, json_type, resolve
from keephold.schema.shared import Presentation, handle_tools, presentation, with_spawn
from keephold.tools.base import ACTIONS, Tool

Dialect = Literal["canonical", "openai", "openai-strict", "anthropic", "gemini", "bedrock", "mistral", "generic"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The keywords of a dialect."""

    constraints: frozenset[str]
    formats: frozenset[str] | None = None
    """The values of `format`; None: any."""
    default: bool = True
    free: bool = True
    """Whether it can express "any value" and "an object of any keys"."""
    null_type: bool = True
    """Whether null is a type; otherwise `nullable` stands beside another type."""
    enums_of_numbers: bool = True
    strict: bool = False
    """Whether every property is required and every object closed, so that null means left out."""
    max_depth: int | None = None


_BOUNDS = {"minimum", "maximum", "multipleOf", "pattern", "format", "minItems", "maxItems"}
_LOOSE = _Words(
    constraints=frozenset(
        _BOUNDS
        | {"exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "uniqueItems"}
        | {"minProperties", "maxProperties", "additionalProperties"}
    )
)
_WORDS: dict[Dialect, _Words] = {
    "openai": _LOOSE,
    "openai-strict": _Words(
        constraints=frozenset(_BOUNDS | {"exclusiveMinimum", "exclusiveMaximum"}),
        formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}),
        default=False,
        free=False,
        strict=True,
        max_depth=10,
    ),
    "anthropic": _LOOSE,
    "gemini": _Words(
        constraints=frozenset(_BOUNDS - {"multipleOf"} | {"minLength", "maxLength", "minProperties", "maxProperties"}),
        formats=frozenset({"date-time", "float", "double", "int32", "int64"}),
        default=False,
        free=False,
        null_type=False,
        enums_of_numbers=False,
    ),
    "bedrock": _LOOSE,
    "mistral": _LOOSE,
    "generic": _LOOSE,
}

_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_KEYWORDS_OF = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": (*_NUMERIC, "format"),
    "number": (*_NUMERIC, "format"),
    "array": ("minItems", "maxItems", "uniqueItems"),
    "object": ("minProperties", "maxProperties"),
}
_PROSE = ("description", "title", "default")
_NOTHING: Schema = {"not": {}}

_VERBS = {
    "spawn": "start in the background under a new `id` and return at once",
    "fetch": "show the state and the new output of the handle `id`",
    "apply": "send input to the running handle `id`, or answer its question",
    "abort": "end the handle `id`",
}
_ACTION = "{}. Leave it out, or null, to run to the end and get the result, with the parameters of spawn and no `id`."
_HANDLE_ID = "spawn: a new id that you choose, not one of an active handle. {}: the id of a handle that was spawned."
_INPUT = "Input for the handle: the answer to its open question, or text for a program that reads; null ends its input."
_INPUT_TEXT = (
    "Input for the handle: text for a program that reads, or the answer to its open question, "
    "where an answer that is not text is its JSON, such as true; null ends its input."
)

_INPUT_OR = "Beside another property of apply, null leaves it out."

_JSON_TEXT = "JSON text of an object"

# Descriptions for dialects that have no keyword.
_SAID = {
    "exclusiveMinimum": "Greater than {}.",
    "exclusiveMaximum": "Less than {}.",
    "multipleOf": "A multiple of {}.",
    "minLength": "At least {} characters.",
    "maxLength": "At most {} characters.",
    "format": "Format: {}.",
    "uniqueItems": "No item twice.",
    "minProperties": "At least {} properties.",
    "maxProperties": "At most {} properties.",
}


def tool_list(tools: Iterable[Tool], dialect: Dialect, actions: Presentation | None = None) -> list[dict[str, Any]]:
    """Return the tools as a model sees them, in order; a `summary` replaces the description (B8).

    `actions`: how stateful tools are shown (G5); by default `per_tool` in the canonical form and `shared` elsewhere.
    """
    listed, form = list(tools), canonical
    if presentation(dialect, actions) == "shared":
        form = with_spawn
        listed += handle_tools(listed, untyped=dialect == "canonical" or _WORDS[dialect].free)
    return [
        {
            "name": tool.name,
            "description": tool.description if tool.summary is None else tool.summary,
            "parameters": wire_schema(form(_as_shown(tool, dialect)), dialect),
        }
        for tool in listed
    ]


def _as_shown(tool: Tool, dialect: Dialect) -> Tool:
    """Return the tool without the parameters that are only accepted, and with the bounds of the others."""
    bounds = {} if dialect == "canonical" else tool.bounds
    if not tool.unshown and not bounds:
        return tool
    shown = {name: own for name, own in tool.parameters["properties"].items() if name not in tool.unshown}
    shown |= {name: {**shown[name], **bound} for name, bound in bounds.items()}
    return replace(tool, parameters={**tool.parameters, "properties": shown})


def wire_schema(schema: Mapping[str, Any], dialect: Dialect) -> Schema:
    """Return the canonical schema of one tool in a dialect."""
    if dialect == "canonical":
        return copy.deepcopy(dict(schema))
    words = _WORDS[dialect]
    return _object(_flat(_inlined(schema, schema, ()), words), words, 1)


# First step: no `$ref`, no `allOf`.


def _inlined(schema: Any, root: Mapping[str, Any], inside: tuple[str, ...]) -> Schema:
    """Return the schema with its references replaced; `inside` has those being followed."""
    if isinstance(schema, bool):
        return {} if schema else dict(_NOTHING)
    result: Schema = {}
    for key, value in schema.items():
        match key:
            case "properties":
                parts = {name: _inlined(part, root, inside) for name, part in value.items()}
                result[key] = {name: part for name, part in parts.items() if part != _NOTHING}
            case "anyOf" | "oneOf" | "prefixItems" | "items" if isinstance(value, list):
                forms = [_inlined(part, root, inside) for part in value]
                result[key] = [form for form in forms if form != _NOTHING]
            case "items" | "additionalProperties" if isinstance(value, Mapping):
                result[key] = _inlined(value, root, inside)
            case "additionalProperties" if "patternProperties" in schema:
                pass
            case "patternProperties":
                result["additionalProperties"] = True
            case "$ref" | "allOf":
                pass
            case _:
                result[key] = value
    for part in schema.get("allOf", ()):
        result = _merged(_inlined(part, root, inside), result)
    if "$ref" in schema:
        result = _merged(_target(schema["$ref"], root, inside), result)
    return _numeric_bounds(result)


def _target(ref: str, root: Mapping[str, Any], inside: tuple[str, ...]) -> Schema:
    target = resolve(root, ref)
    if ref not in inside:
        return _inlined(target, root, (*inside, ref))
    return {"type": "object"} if isinstance(target, Mapping) and target.get("type") == "object" else {}


def _merged(under: Schema, over: Schema) -> Schema:
    """Join two schemas; where that is impossible, `over` wins."""
    merged = {**under, **over}
    if "properties" in under and "properties" in over:
        ours, theirs = over["properties"], under["properties"]
        merged["properties"] = {
            name: _merged(theirs.get(name, {}), ours.get(name, {})) for name in dict.fromkeys([*theirs, *ours])
        }
    if "required" in under and "required" in over:
        merged["required"] = list(dict.fromkeys([*under["required"], *over["required"]]))
    return merged


def _numeric_bounds(schema: Schema) -> Schema:
    """Turn `exclusiveMinimum: true` of old drafts, which providers refuse, into a number."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
            schema[exclusive] = schema.pop(bound)
    return schema


# Second step: no union at the root.


def _flat(schema: Schema, words: _Words) -> Schema:
    """Return one object instead of a union: all properties, and those that all forms require."""
    if "properties" not in schema and all(
        form.get("properties", {}).get("action", {}).get("const") in ACTIONS for form in schema.get("oneOf") or [{}]
    ):
        return _flat_actions(schema["oneOf"], words)
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            base = {key: value for key, value in schema.items() if key != union}
            forms = [_flat(_merged(base, form), words) for form in schema[union]]
            known = [form.get("properties", {}) for form in forms]
            names = dict.fromkeys(name for properties in known for name in properties)
            return {
                **base,
                "properties": {name: _either([own[name] for own in known if name in own]) for name in names},
                "required": [name for name in names if all(name in form.get("required", ()) for form in forms)],
            }
    return schema


def _flat_actions(variants: list[Schema], words: _Words) -> Schema:
    """Return a stateful tool's variants as one object, each property labelled with its actions."""
    owners: dict[str, list[str]] = {}
    forms: dict[str, list[Schema]] = {}
    for variant in variants:
        for name, form in _flat(variant, words)["properties"].items():
            owners.setdefault(name, []).append(variant["properties"]["action"]["const"])
            forms.setdefault(name, []).append(form)
    required = {variant["properties"]["action"]["const"]: variant["required"] for variant in variants}
    properties: dict[str, Schema] = {}
    for name, actions in owners.items():
        if name == "action":
            verbs = "; ".join(f"{action}: {_VERBS[action]}" for action in actions)
            properties[name] = {"enum": actions, "description": _ACTION.format(verbs)}
        elif name == "id":
            others = ", ".join(action for action in actions if action != "spawn")
            properties[name] = {"type": "string", "description": _HANDLE_ID.format(others or "Others")}
        else:
            form = _input(variants, words) if name == "input" else _either(forms[name])
            needed = all(name in required[action] for action in actions)
            label = f"({', '.join(actions)}{', required' if needed else ''})"
            properties[name] = {**form, "description": _text(label, form.get("description"))}
    return {"properties": properties, "required": []}


def _input(variants: list[Schema], words: _Words) -> Schema:
    """Return apply's `input`: untyped, or a string. A strict dialect makes a model send it even if it is optional."""
    needed = any("input" in variant["required"] for variant in variants)
    said = _text(_INPUT if words.free else _INPUT_TEXT, None if needed else _INPUT_OR)
    return {"description": said} if words.free else {"type": ["string", "null"], "description": said}


def _either(forms: list[Schema]) -> Schema:
    """Join the forms of a property in a union: the same form, an enum, or `anyOf`."""
    essence = [{key: value for key, value in form.items() if key not in _PROSE} for form in forms]
    prose = {key: form[key] for form in reversed(forms) for key in ("description",) if key in form}
    distinct = _distinct(essence)
    if len(distinct) == 1:
        return {**distinct[0], **prose}
    if all(("const" in form or "enum" in form) and form.keys() <= {"const", "enum", "type"} for form in distinct):
        return {"enum": _distinct(value for form in distinct for value in _enumerated(form)), **prose}
    return {"anyOf": _distinct({key: form[key] for key in form if key != "default"} for form in forms)}


# Third step: the dialect's keywords.


def _rendered(schema: Schema, words: _Words, depth: int, *, optional: bool = False) -> Schema:
    """Return one value in the dialect. `depth` is that of the object around it."""
    alternatives = _alternatives({key: value for key, value in schema.items() if key not in _PROSE}, words)
    nullable = (optional and words.strict) or any(one.get("type") == "null" for one in alternatives)
    forms: list[tuple[Schema, str | None, list[str]]] = []
    for one in alternatives:
        if one.get("type") != "null":
            form, notes = _form(one, words, depth)
            if all(form != other for other, _, _ in forms):
                forms.append((form, one.get("description"), notes))
    outer = schema.get("description")
    said = [] if words.default or schema.get("default") is None else [f"Default: {_json(schema['default'])}."]

    bodies: list[Schema]
    if len(forms) == 1:
        form, own, notes = forms[0]
        bodies, text = [form], _text(outer, own, *notes, *said)
    elif words.null_type:
        bodies, text = [_described(form, _text(own, *notes)) for form, own, notes in forms], _text(outer, *said)
    else:  # a union must stand alone, so its forms carry the description
        bodies, text = [_described(form, _text(outer, *said, own, *notes)) for form, own, notes in forms], ""

    if not words.null_type:
        bodies = bodies or [{"type": "string"}]
        bodies = [{**body, "nullable": True} for body in bodies] if nullable else bodies
    elif nullable:
        bodies.append({"type": "null"})
    whole = _described(bodies[0] if len(bodies) == 1 else {"anyOf": bodies}, text)
    return {**whole, "default": schema["default"]} if words.default and "default" in schema else whole


def _alternatives(schema: Schema, words: _Words) -> list[Schema]:
    """Return the schema as alternatives with one type each; without a type, any value."""
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            rest = {key: value for key, value in schema.items() if key != union}
            found = [one for form in schema[union] for one in _alternatives(_merged(rest, form), words)]
            return _joined(found) if all("type" in one for one in found) else [{}]
    values = _enumerated(schema)
    kinds = schema.get("type") or _implied_types(schema, values)
    if not kinds:
        return [{}] if words.free else [{"type": kind} for kind in ("string", "number", "boolean", "null")]
    if isinstance(kinds, str):
        return [{**schema, "type": kinds}]
    split = [(kind, [value for value in values if json_type(value) == kind]) for kind in kinds]
    return [
        {**schema, "type": kind, "enum": own} if values else {**schema, "type": kind}
        for kind, own in split
        if own or not values
    ]


def _joined(alternatives: list[Schema]) -> list[Schema]:
    """Join constants of one type into one enum: some providers do not enforce a union of constants."""
    joined: list[Schema] = []
    enums: dict[str, Schema] = {}
    for one in alternatives:
        values = _enumerated(one)
        if not values or one.keys() - {"type", "const", "enum", *_PROSE}:
            joined.append(one)
            continue
        enum = enums.get(one["type"])
        if enum is None:
            enum = enums[one["type"]] = {"type": one["type"], "enum": [], "description": ""}
            joined.append(enum)
        enum["enum"] += [value for value in values if value not in enum["enum"]]
        if "description" in one:
            note = f"{', '.join(_json(value) for value in values)}: {one['description']}"
            enum["description"] = _text(enum["description"], note)
    return joined


def _implied_types(schema: Schema, values: list[Any]) -> list[str]:
    if values:
        return list(dict.fromkeys(json_type(value) for value in values))
    if "properties" in schema or "additionalProperties" in schema:
        return ["object"]
    return ["array"] if "items" in schema or "prefixItems" in schema else []


def _form(schema: Schema, words: _Words, depth: int) -> tuple[Schema, list[str]]:
    """Return a schema of one type in the dialect, and sentences for what it cannot express."""
    kind = schema.get("type")
    notes: list[str] = []
    if kind is None:
        return {}, notes
    if kind == "object":
        free = not schema.get("properties") and schema.get("additionalProperties") is not False
        if (free and not words.free) or (words.max_depth is not None and depth >= words.max_depth):
            values = schema.get("additionalProperties") if free else None
            fitting = f" whose values fit {_json(values)}" if isinstance(values, Mapping) and values else ""
            return {"type": "string"}, [f"{_JSON_TEXT}{fitting}."]
        # Some local models read an object without `additionalProperties` as closed.
        whole = {"additionalProperties": True, **schema} if free else schema
        form = _object(whole, words, depth + 1)
    elif kind == "array":
        item, notes = _items(schema)
        form = {"type": "array", "items": _rendered(item, words, depth)}
    else:
        form = {"type": kind}
    values = _enumerated(schema)
    if values and kind not in ("object", "array") and (kind == "string" or words.enums_of_numbers):
        form["enum"] = values
    elif values:
        notes.append(f"One of: {', '.join(_json(value) for value in values)}.")
    constraints, more = _constraints(schema, kind, words)
    return {**form, **constraints}, notes + more


def _object(schema: Schema, words: _Words, depth: int) -> Schema:
    required = schema.get("required", ())
    properties = {
        name: _rendered(own, words, depth, optional=name not in required)
        for name, own in schema.get("properties", {}).items()
    }
    form: Schema = {"type": "object", "properties": properties}
    if words.strict:
        return {**form, "required": list(properties), "additionalProperties": False}
    needed = [name for name in required if name in properties]
    if needed:
        form["required"] = needed
    others = schema.get("additionalProperties")
    if others is not None and "additionalProperties" in words.constraints:
        form["additionalProperties"] = others if isinstance(others, bool) else _rendered(others, words, depth) or True
    return form


def _items(schema: Schema) -> tuple[Schema, list[str]]:
    """Return the schema of an array's items. A tuple becomes an array of any of its items, with a note on the order."""
    items = schema.get("items", True)
    first = schema.get("prefixItems", items if isinstance(items, list) else [])
    rest = {} if isinstance(items, bool | list) else items
    if not first:
        return rest, []
    ends = items is False or schema.get("maxItems", math.inf) <= len(first)
    order = ", ".join(str(form.get("type", "any value")) for form in first)
    return _either(first if ends else [*first, rest]), [f"In order: {order}."]


def _constraints(schema: Schema, kind: str, words: _Words) -> tuple[Schema, list[str]]:
    """Return the keywords of this type that the dialect has, and sentences for the others."""
    if "exclusiveMinimum" not in words.constraints:
        schema = _inclusive(schema, kind)
    kept: Schema = {}
    said: list[str] = []
    for keyword in _KEYWORDS_OF.get(kind, ()):
        value = schema.get(keyword)
        if value is None or value is False:
            continue
        if keyword in words.constraints and (keyword != "format" or words.formats is None or value in words.formats):
            kept[keyword] = value
        elif keyword in _SAID:
            said.append(_SAID[keyword].format(value))
    return kept, said


def _inclusive(schema: Schema, kind: str) -> Schema:
    """Return bounds without `exclusive…`: exact for integers, one value too wide for numbers, which is described."""
    bounds = dict(schema)
    if (low := schema.get("exclusiveMinimum")) is not None:
        low = math.floor(bounds.pop("exclusiveMinimum")) + 1 if kind == "integer" else low
        bounds["minimum"] = max(low, schema.get("minimum", low))
    if (high := schema.get("exclusiveMaximum")) is not None:
        high = math.ceil(bounds.pop("exclusiveMaximum")) - 1 if kind == "integer" else high
        bounds["maximum"] = min(high, schema.get("maximum", high))
    return bounds


def _enumerated(schema: Schema) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _text(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)


def _described(form: Schema, text: str) -> Schema:
    return {**form, "description": text} if text else form


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
