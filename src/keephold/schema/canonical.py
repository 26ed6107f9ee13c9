"""The canonical schema of a tool (C1, C2), from which the schemas of providers (`dialects`) and the check of arguments
(`arguments`) are derived.

A tool with actions is a `oneOf` with one variant for each action, in the order spawn, fetch, apply, abort. Spawn has
the tool's own parameters and a required `id`; fetch and apply have the tool's `action_parameters`. A tool without
actions is its own parameters, unchanged.
"""

import contextlib
import copy
import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

from keephold.errors import ConfigError
from keephold.tools.base import ACTIONS, Action, Tool

RESERVED = ("action", "id", "input", "spawn")
"""Names that actions use; a stateful tool cannot have parameters with these names."""

_HANDLE_ID = {
    "type": "string",
    "description": "Handle ID for this tool instance. Must be unique across active handles.",
}

# A `$ref` in the tool's parameters is relative to their root, so its target must be at the root here too.
_ROOT_ONLY = ("$schema", "$defs", "definitions")

_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")

_OTHER_NAMES = {
    "bool": "boolean",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "map": "object",
    "none": "null",
    "str": "string",
    "table": "object",
    "text": "string",
    "tuple": "array",
}
"""Names of types in Python and elsewhere, which the spelling alone would not find."""

MOST_WAYS = 10_000
"""In how many ways a schema may check one value. A server may send one with more, which would stop this process."""

_NO_SCHEMA = ("const", "enum", "default", "examples", "required", "dependentRequired")


def canonical(tool: Tool) -> dict[str, Any]:
    """Return the whole schema of a tool."""
    if not tool.actions:
        return copy.deepcopy(dict(tool.parameters))
    variants = [variant(tool, action) for action in ACTIONS if action in tool.actions]
    root = {keyword: branch.pop(keyword) for branch in variants for keyword in _ROOT_ONLY if keyword in branch}
    return {"type": "object", "oneOf": variants, **root}


def variant(tool: Tool, action: Action) -> dict[str, Any]:
    """Return the schema of one action alone."""
    properties: dict[str, Any] = {"action": {"const": action}}
    required = ["action", "id"]
    if action == "spawn":
        own = copy.deepcopy(dict(tool.parameters))
        own.pop("type", None)
        own.pop("$id", None)
        properties |= {"id": dict(_HANDLE_ID), **own.pop("properties", {})}
        return {"properties": properties, "required": required + own.pop("required", []), **own}
    further = copy.deepcopy(dict(tool.action_parameters.get(action, {})))
    properties["id"] = {"type": "string"}
    if action == "apply":
        properties["input"] = {}
        required += [] if further else ["input"]
    return {"properties": properties | further, "required": required}


def check_parameters(
    name: str,
    parameters: Mapping[str, Any],
    actions: Collection[Action],
    action_parameters: Mapping[str, Mapping[str, Any]] = {},
) -> None:
    """Raise `ConfigError` with everything that is wrong with a tool's own parameters."""
    if parameters.get("type") != "object":
        right = '{"type": "object", "properties": {…}}, but its type is'
        given = repr(parameters.get("type", "not given"))
        raise ConfigError([f"tool `{name}`: parameters must be an object schema, {right} {given}"])
    try:
        compiled(parameters, tool=name)
    except ConfigError:
        wrong = [f"tool `{name}`: at {'/'.join(map(str, path))}: {said}" for path, said in wrong_types(parameters)]
        if wrong:
            raise ConfigError(wrong) from None
        raise
    # Flat dialects show the parameters of all actions in one object, so two of them cannot share a name.
    taken = (*RESERVED, *(each for further in action_parameters.values() for each in further)) if actions else ()
    problems = [f"tool `{name}`: {problem}" for problem in _problems(parameters, taken)]
    if problems:
        raise ConfigError(problems)


def _problems(parameters: Mapping[str, Any], taken: Collection[str]) -> Iterator[str]:
    """Yield problems. `taken` has the names that the actions of a stateful tool use."""
    references = sorted(set(_references(parameters)))
    foreign = [ref for ref in references if not _is_pointer(ref)]
    if foreign:
        yield from map(_not_a_pointer, foreign)
        return
    if _most_ways(parameters) > MOST_WAYS:
        yield (
            f"one value would be checked in more than {MOST_WAYS:,} ways, because alternatives refer to alternatives "
            "again and again; list the alternatives once"
        )
    if taken:
        for name in sorted(set(property_names(parameters)) & set(taken)):
            whose = "every stateful tool" if name in RESERVED else "a tool of this kind"
            listed = RESERVED if name in RESERVED else [each for each in taken if each not in RESERVED]
            yield (
                f"parameter `{name}` has a name that {whose} uses for itself "
                f"({', '.join(listed)}); rename it, or declare no actions"
            )
        for ref in references:
            if not ref.startswith(("#/$defs/", "#/definitions/")):
                yield (
                    f'"$ref": "{ref}" cannot be followed from inside the spawn variant; '
                    "move what it names to `$defs` and refer to it there"
                )


def _most_ways(parameters: Mapping[str, Any]) -> int:
    """Return in how many ways one value may be checked, at the place with the most: a validator may try them all."""
    known: dict[int, int] = {}

    def ways(schema: Any) -> int:
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) not in known:
            known[id(schema)] = 1  # a schema that refers to itself is checked once
            applied = [schema[name] for name in ("not", "if", "then", "else") if name in schema]
            for several in map(schema.get, ("allOf", "anyOf", "oneOf")):
                applied += several if isinstance(several, list) else ()
            if isinstance(ref := schema.get("$ref"), str):
                with contextlib.suppress(ConfigError):  # in a value, it may name nothing
                    applied.append(resolve(parameters, ref))
            known[id(schema)] = 1 + sum(map(ways, applied))
        return known[id(schema)]

    try:
        return max(map(ways, _mappings(parameters)))
    except RecursionError:
        return MOST_WAYS + 1


def _mappings(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects of a schema: a property may have any name, and a reference may lead into a value."""
    if isinstance(schema, Mapping):
        yield schema
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from _mappings(part)


def wrong_types(schema: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every unknown `type` in a schema, the most common mistake, as its path and a sentence."""
    if isinstance(schema, list):
        for at, part in enumerate(schema):
            yield from wrong_types(part, (*path, at))
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key == "type":
            # A property called `type` has a schema as its value.
            given = value if isinstance(value, list) else [value]
            yield from (((*path, key), _no_type(name)) for name in given if isinstance(name, str) and name not in TYPES)
        if key not in _NO_SCHEMA and not key.startswith("x-"):
            yield from wrong_types(value, (*path, key))


def _no_type(name: str) -> str:
    near = difflib.get_close_matches(name, TYPES, n=1, cutoff=0.5)
    first = _OTHER_NAMES.get(name.lower()) or (near[0] if near else TYPES[0])
    listed = ", ".join(f'"{each}"' for each in dict.fromkeys((first, *TYPES)))
    return f'must be one of {listed}, not "{name[:40]}"'


def compiled(schema: Mapping[str, Any], *, tool: str) -> jsonschema_rs.Validator:
    """Return a validator of the schema, or raise `ConfigError`. Nothing is fetched from the network."""
    try:
        return jsonschema_rs.validator_for(dict(schema), offline=True)
    except jsonschema_rs.ValidationError as error:
        where = "/".join(str(part) for part in error.instance_path) or "their root"
        reason = f"tool `{tool}`: parameters are not a valid JSON Schema, at {where}: {error.message}"
        raise ConfigError([reason]) from None
    except ValueError as error:
        raise ConfigError([f"tool `{tool}`: parameters cannot be written as JSON: {error}"]) from None


def property_names(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> list[str]:
    """Return the names of an object schema's properties, with those of its branches, in order. References are relative
    to `root`, by default the schema itself."""
    return list(dict.fromkeys(_names(schema, schema if root is None else root, set())))


def _names(schema: Any, root: Mapping[str, Any], followed: set[str]) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    yield from schema.get("properties", {})
    for keyword in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(keyword, ()):
            yield from _names(branch, root, followed)
    ref = schema.get("$ref")
    if ref is not None and ref not in followed:
        followed.add(ref)
        yield from _names(resolve(root, ref), root, followed)


def resolve(root: Mapping[str, Any], ref: str) -> Any:
    """Return the target of a local `$ref` (`#/$defs/Place`) in the schema `root`."""
    if not _is_pointer(ref):
        raise ConfigError([_not_a_pointer(ref)])
    found: Any = root
    for part in ref.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ConfigError([f'"$ref": "{ref}" names nothing; there is no `{key}`']) from None
    return found


def _is_pointer(ref: str) -> bool:
    return ref == "#" or ref.startswith("#/")


def _not_a_pointer(ref: str) -> str:
    return f'"$ref": "{ref}" must name a part of the same schema, such as "#/$defs/Name"'


def json_type(value: Any) -> str:
    """Return the JSON type of a value; 1.0 is a number here, though a schema accepts it as an integer."""
    return _TYPES.get(type(value), "object")


def _references(schema: Any) -> Iterator[str]:
    """Yield every `$ref` below, but not a *property* called `$ref`, whose value is a schema."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            elif key not in ("const", "enum", "default", "examples"):
                yield from _references(value)
    elif isinstance(schema, list):
        for part in schema:
            yield from _references(part)
