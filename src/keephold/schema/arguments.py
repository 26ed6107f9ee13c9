"""Checks a call's arguments against its tool's schema (C9, C10), and decodes an answer sent as text (G3).

`ArgumentCheck` is built once for a tool and action. Valid arguments cost one compiled validation. Others are first read
the way a dialect made the model write them, or as they can only have been meant:

- `null` for an optional property whose schema does not allow null means "left out", at any depth: strict dialects make
  every property required. Apply's `input` may be null, which ends the input; if `apply` takes more (a terminal's
  `keys`), null beside something else is left out, too.
- Text is decoded where the schema does not allow a string: JSON text of an object or an array, a number, `true` and
  `false`. The caller is given a sentence about each, except for objects of any keys: some dialects cannot express
  those, so the model had to send text. Apply's `input` may be a string, so it is never decoded here.
- A lone text becomes an array of one text where only an array of texts is allowed. The caller is given a sentence.
- An object becomes an array of its members where only an array of objects of two texts is allowed: `{"a": "b"}` is the
  same as `[{"id": "a", "pattern": "b"}]`.

Then the `default` of an absent top-level property is filled in; deeper defaults are left to the tool. Arguments that
still do not fit raise `invalid_arguments`, with a message that stays short and that a model can act on.

At the top level, a schema that does not mention `additionalProperties` allows no others: a misspelt name is never lost.
"""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from keephold.errors import ConfigError, ToolError
from keephold.handles.question import Question, answer_fits
from keephold.schema.canonical import canonical, compiled, property_names, variant
from keephold.schema.examples import mended
from keephold.schema.faults import MAX_TRIED, cut, explained, message, path_of, shown
from keephold.schema.parts import NOWHERE, SchemaParts, has_more_parts, items_of
from keephold.tools.base import Action, Tool


def check_for(tool: Tool, action: Action | None) -> "ArgumentCheck":
    """Return the check for one action of a tool, or for a one-shot call (None: no `action`, no `id`)."""
    schema = dict(tool.parameters) if action is None else variant(tool, action)
    elsewhere: Iterable[str] = ()
    if tool.actions:
        # A flat dialect shows the names of all actions at once, and a strict one makes the model send them all.
        elsewhere = set(property_names(canonical(tool))) - set(property_names(schema)) - {"action"}
    schema["properties"] = {**schema.get("properties", {}), **dict.fromkeys(elsewhere, NOWHERE)}
    further = tool.action_parameters.get(action, ()) if action == "apply" else ()
    return ArgumentCheck(schema, tool=tool.name if action is None else f"{tool.name} {action}", further=further)


def decode_input(value: Any, question: Question) -> Any:
    """Decode `apply`'s `input` if it is JSON text of the question's type; return anything else unchanged."""
    if isinstance(value, str) and not answer_fits(question, value):
        decoded = _decoded(value)
        if answer_fits(question, decoded):
            return decoded
    return value


class ArgumentCheck:
    """Checks the arguments of one kind of call. Errors call it `tool`: `git spawn`. `further` has what an `apply` takes
    besides `input`."""

    def __init__(self, schema: Mapping[str, Any], *, tool: str, further: Iterable[str] = ()) -> None:
        self._tool = tool
        self._further = tuple(further)
        self._schema = SchemaParts(_closed(schema), tool)
        self._is_valid = compiled(self._schema.root, tool=tool).is_valid
        self._defaults = list(self._usable_defaults())
        properties = self._schema.root.get("properties", {})
        self._whole = [
            name for name, own in properties.items() if isinstance(own, Mapping) and own.get("type") == "integer"
        ]

    def _usable_defaults(self) -> Iterator[tuple[str, Any]]:
        for name, own in self._schema.root.get("properties", {}).items():
            if isinstance(own, Mapping) and "default" in own:
                default = own["default"]
                # Some schemas write `default: null` for "no default" beside a type that is never null.
                if default is not None or self._schema.admits(own, "null"):
                    yield name, default

    def __call__(self, arguments: dict[str, Any], taken: list[str] | None = None) -> dict[str, Any]:
        """Return the cleaned arguments, the same object if nothing was to do. Raise `ToolError`.

        `taken` gets a sentence for each value that was read in another type than it was sent in."""
        try:
            if self._is_valid(arguments):
                return self._with_defaults(arguments)
            if not has_more_parts(arguments, _MAX_CORRECTED):
                reading = _Reading(self._schema)
                arguments = self._with_defaults(reading.meant(arguments, self._schema.root, ()))
                if self._is_valid(arguments):
                    if taken is not None:
                        taken += reading.taken
                    return arguments
            reasons = explained(arguments, self._schema, self._tool)
        except ConfigError as error:  # a schema with its own ids, which only the validator can follow
            reasons = [error.message]
        except ValueError as error:  # from the validator: a set, a key that is not a string, half of a character
            reasons = [f"they cannot be written as JSON ({cut(str(error), 120)})"]
        except RecursionError:
            reasons = ["they are nested too deeply"]
        raise ToolError(message(self._tool, reasons), code="invalid_arguments")

    def mended(self, arguments: Mapping[str, Any], most: int, *, invented: bool = True) -> dict[str, Any] | None:
        """Return arguments that fit, made of these and of examples where they do not, in `most` bytes of JSON.

        `invented`: a missing text may become a placeholder."""
        return mended(self._schema, arguments, most, invented=invented)

    def _with_defaults(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in self._whole:
            given = arguments.get(name)
            if isinstance(given, float) and given.is_integer():  # JSON Schema treats `5.0` as an integer
                arguments = arguments | {name: int(given)}
        absent = {name: default for name, default in self._defaults if name not in arguments}
        for name, default in absent.items():
            if isinstance(default, dict | list):
                absent[name] = copy.deepcopy(default)
        checked = arguments | absent if absent else arguments
        if checked.get("input", ...) is None and any(name in checked for name in self._further):
            return {name: value for name, value in checked.items() if name != "input"}
        return checked


class _Reading:
    """Reads the arguments of one call as they were meant, where the schema allows no other meaning."""

    def __init__(self, schema: SchemaParts) -> None:
        self._schema = schema
        self.taken: list[str] = []
        self._tried = 0

    def meant(self, value: Any, part: Any, path: tuple[str | int, ...]) -> Any:
        """Return `value` without nulls that mean "left out", and with text decoded."""
        if not isinstance(value, str | dict | list):
            return value
        schema = self._schema.followed(part)
        if isinstance(value, str):
            return self._text(value, part, path)
        if isinstance(value, dict) and (pair := self._pair(schema)) is not None:
            value = [dict(zip(pair, member, strict=True)) for member in value.items()]
        for each in schema.get("allOf", ()):
            value = self.meant(value, each, path)
        union = (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
        forms = [form for form in union if self._schema.admits_type_of(form, value)]
        for form in forms:
            self._tried += len(forms) > 1
            if self._tried > MAX_TRIED:
                break
            before = len(self.taken)
            read = self.meant(value, form, path)
            if len(forms) == 1 or self._schema.fits(form, read):
                value = read
                break
            del self.taken[before:]
        if isinstance(value, list):
            return [self.meant(item, own, (*path, at)) for at, (item, own) in enumerate(items_of(value, schema))]
        return dict(self._members(value, schema, path))

    def _text(self, text: str, part: Any, path: tuple[str | int, ...]) -> Any:
        schema = self._schema.followed(part)
        if self._schema.admits(schema, "string"):
            return text
        kind = {"{": "object", "[": "array"}.get(text.lstrip()[:1])
        if kind != "array" and self._wants_texts(schema) and self._schema.fits(part, [text]) and text.strip():
            self.taken.append(f"`{path_of(path)}`: {shown(text)} was read as [{shown(text)}]")
            return [text]
        if kind is None:
            return self._scalar(text, schema, path)
        decoded = _decoded(text) if self._schema.admits(schema, kind) else None
        if decoded is None:
            return text
        if kind == "array" or "properties" in schema:
            self._took(path, text, decoded)
        return self.meant(decoded, schema, path)

    def _wants_texts(self, schema: Mapping[str, Any]) -> bool:
        """Whether only an array of texts is allowed, or null."""
        forms = (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ()))
        arrays = [form for form in map(self._schema.followed, forms) if "items" in form]
        if len(arrays) != 1 or [kind for kind in _KINDS if self._schema.admits(schema, kind)] != ["array"]:
            return False
        ((_, item),) = items_of([None], arrays[0])
        return [kind for kind in (*_KINDS, "null") if self._schema.admits(item, kind)] == ["string"]

    def _pair(self, schema: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return the names of the two texts of each object, where only an array of such objects is allowed."""
        if "items" not in schema or [kind for kind in _KINDS if self._schema.admits(schema, kind)] != ["array"]:
            return None
        item = self._schema.followed(schema["items"])
        texts = [name for name, own in item.get("properties", {}).items() if self._schema.admits(own, "string")]
        names = tuple(item.get("required", ()))
        return names if len(names) == 2 and set(names) == set(texts) == set(item.get("properties", {})) else None

    def _scalar(self, text: str, schema: Mapping[str, Any], path: tuple[str | int, ...]) -> Any:
        word = text.strip()
        value: Any = {"true": True, "false": False}.get(word.lower())
        if value is None and len(word) <= _LONGEST_NUMBER and _NUMBER.fullmatch(word):
            value = _decoded(word)
            if isinstance(value, float) and not self._schema.admits(schema, "number"):
                if not value.is_integer() or abs(value) > _EXACT:
                    return text
                value = int(value)
        if value is None or not self._schema.admits_type_of(schema, value):
            return text
        self._took(path, text, value)
        return value

    def _took(self, path: tuple[str | int, ...], text: str, value: Any) -> None:
        self.taken.append(f"`{path_of(path)}`: {shown(text)} was read as {shown(value)}")

    def _members(
        self, value: dict[str, Any], schema: Mapping[str, Any], path: tuple[str | int, ...]
    ) -> Iterator[tuple[str, Any]]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        for name, member in value.items():
            own = properties.get(name, schema.get("additionalProperties", True))
            if member is None and name in properties and name not in required and not self._schema.admits(own, "null"):
                continue
            yield name, self.meant(member, own, (*path, name))


_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_LONGEST_NUMBER = 32
_EXACT = 2**53 - 1
"""Up to here, a float is the integer that was written. A larger one may be another one, and a call would use that."""
_KINDS = ("string", "array", "object", "integer", "number", "boolean")
_MAX_CORRECTED = 50_000
"""Parts of arguments that are still corrected: half a million would hold the loop up for a second."""


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema, closed for unknown properties unless it says otherwise."""
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return dict(schema)
    elsewhere = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")
    keyword = "unevaluatedProperties" if any(key in schema for key in elsewhere) else "additionalProperties"
    return {**schema, keyword: False}


def _decoded(text: str) -> Any:
    """Return the decoded JSON; None if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
