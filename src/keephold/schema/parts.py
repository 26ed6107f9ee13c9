"""Parts of a JSON schema, with questions about them: which types a part allows, whether a value fits it."""

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import jsonschema_rs

from keephold.schema.canonical import compiled, json_type, resolve

NOWHERE: dict[str, Any] = {"not": {}}
"""A schema that nothing fits, in every draft: for names that only the tool's other actions take."""


class SchemaParts:
    """A schema, with questions about its parts. Validators of parts are cached by the part's identity."""

    def __init__(self, root: Mapping[str, Any], tool: str) -> None:
        self.root = root
        self._tool = tool
        self._parts: dict[int, jsonschema_rs.Validator] = {}
        self._admitted: dict[tuple[int, str], tuple[Any, bool]] = {}
        """By form of a union: forms that refer to one another are seen once. The form is kept with its id."""

    def followed(self, part: Any) -> Mapping[str, Any]:
        """Return the part with its `$ref` resolved, and `True` and `False` written out."""
        if isinstance(part, bool):
            return {} if part else NOWHERE
        own: Mapping[str, Any] = part
        for _ in range(64):  # a `$ref` that leads back to itself allows anything
            if "$ref" not in own:
                return own
            target = resolve(self.root, own["$ref"])
            rest = {keyword: value for keyword, value in own.items() if keyword != "$ref"}
            own = {**target, **rest} if isinstance(target, Mapping) else self.followed(target)
        return {}

    def admits(self, part: Any, kind: str) -> bool:
        """Return whether a value of this JSON type may fit, judging by types and enumerated values alone."""
        schema = self.followed(part)
        if schema.get("not") == {}:
            return False
        kinds = schema.get("type")
        if kinds is not None and kind not in ([kinds] if isinstance(kinds, str) else kinds):
            return False
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None and all(json_type(value) != kind for value in values):
            return False
        return all(self._admits(part, kind) for part in schema.get("allOf", ())) and all(
            any(self._admits(form, kind) for form in schema[union]) for union in ("anyOf", "oneOf") if union in schema
        )

    def _admits(self, form: Any, kind: str) -> bool:
        known = self._admitted.get((id(form), kind))
        if known is None:
            known = self._admitted[id(form), kind] = (form, self.admits(form, kind))
        return known[1]

    def admits_type_of(self, part: Any, value: Any) -> bool:
        kind = json_type(value)
        numeric = kind in ("integer", "number")
        return any(self.admits(part, each) for each in (("integer", "number") if numeric else (kind,)))

    def fits(self, part: Any, value: Any) -> bool:
        if isinstance(part, bool):
            return part
        if id(part) not in self._parts:
            self._parts[id(part)] = self.alone(part)
        return self._parts[id(part)].is_valid(value)

    def alone(self, part: Any) -> jsonschema_rs.Validator:
        """Return a validator of the part alone."""
        return compiled({**self._context, "allOf": [_rebased(part)]}, tool=self._tool)

    @cached_property
    def _context(self) -> dict[str, Any]:
        """The context of a part alone: its draft, and the whole schema for its references."""
        draft = {key: self.root[key] for key in ("$schema",) if key in self.root}
        whole = {key: value for key, value in self.root.items() if key not in ("$schema", "$id", "id")}
        return {**draft, "$defs": {"whole": _rebased(whole)}}


def _rebased(schema: Any) -> Any:
    """Return the schema with each `$ref` relative to `#/$defs/whole` instead of the root."""
    if isinstance(schema, list):
        return [_rebased(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _rebased(value) for key, value in schema.items()}
    ref = moved.get("$ref")
    if isinstance(ref, str) and ref[:2] in ("#", "#/"):
        moved["$ref"] = f"#/$defs/whole{ref[1:]}"
    return moved


def items_of(value: list[Any], schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Return an array's items, each with its schema."""
    items = schema.get("items", True)
    first, rest = (items, True) if isinstance(items, list) else (schema.get("prefixItems", ()), items)
    return zip(value, itertools.chain(first, itertools.repeat(rest)), strict=False)


def has_more_parts(value: Any, most: int) -> bool:
    """Whether a value has more parts than that, counted at every depth."""
    parts = [value]
    for _ in range(most):
        if not parts:
            return False
        part = parts.pop()
        if isinstance(part, dict | list):
            parts.extend(part.values() if isinstance(part, dict) else part)
    return True
