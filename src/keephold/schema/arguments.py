"""Checks a call's arguments against its tool's schema (C9, C10), and decodes an answer sent as text (G3).

`ArgumentCheck` is built once for a tool and action. Valid arguments cost one compiled validation. Others are first read
the way a dialect made the model write them:

- `null` for an optional property whose schema does not allow null means "left out", at any depth: strict dialects make
  every property required. Apply's `input` may be null, which ends the input; if `apply` takes more (a terminal's
  `keys`), null beside something else is left out, too.
- JSON text is decoded where the schema wants an object or an array and not a string: some dialects cannot express "an
  object of any keys".

Then the `default` of an absent top-level property is filled in; deeper defaults are left to the tool. Arguments that
still do not fit raise `invalid_arguments`, with a message that stays short and that a model can act on.

At the top level, a schema that does not mention `additionalProperties` allows no others: a misspelt name is never lost.
"""

import copy
import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec

from keephold.errors import ConfigError, ToolError
from keephold.handles.question import Question, answer_fits
from keephold.schema.canonical import canonical, compiled, json_type, property_names, resolve, variant
from keephold.tools.base import Action, Tool

_NOWHERE: dict[str, Any] = {"not": {}}
"""A schema that nothing fits, in every draft: for names that only the tool's other actions take."""


def check_for(tool: Tool, action: Action | None) -> "ArgumentCheck":
    """Return the check for one action of a tool, or for a one-shot call (None: no `action`, no `id`)."""
    schema = dict(tool.parameters) if action is None else variant(tool, action)
    elsewhere: Iterable[str] = ()
    if tool.actions:
        # A flat dialect shows the names of all actions at once, and a strict one makes the model send them all.
        elsewhere = set(property_names(canonical(tool))) - set(property_names(schema)) - {"action"}
    schema["properties"] = {**schema.get("properties", {}), **dict.fromkeys(elsewhere, _NOWHERE)}
    if action == "apply" and tool.action_parameters.get(action):
        return _ApplyCheck(schema, tool=f"{tool.name} {action}", further=tool.action_parameters[action])
    return ArgumentCheck(schema, tool=tool.name if action is None else f"{tool.name} {action}")


def decode_input(value: Any, question: Question) -> Any:
    """Decode `apply`'s `input` if it is JSON text of the question's type; return anything else unchanged."""
    if isinstance(value, str) and not answer_fits(question, value):
        decoded = _decoded(value)
        if answer_fits(question, decoded):
            return decoded
    return value


class ArgumentCheck:
    """Checks the arguments of one kind of call. Errors call it `tool`: `git spawn`."""

    def __init__(self, schema: Mapping[str, Any], *, tool: str) -> None:
        self._tool = tool
        self._schema = _Schema(_closed(schema), tool)
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

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the cleaned arguments, the same object if nothing was to do. Raise `ToolError`."""
        try:
            if self._is_valid(arguments):
                return self._with_defaults(arguments)
            if not _has_more_parts(arguments, _MAX_CORRECTED):
                arguments = self._with_defaults(self._as_meant(arguments, self._schema.root))
                if self._is_valid(arguments):
                    return arguments
            faults = _Faults(self._schema).of(arguments, self._schema.root, ())
            reasons = [_sentence(fault, self._tool) for fault in itertools.islice(faults, _MAX_FAULTS + 1)]
        except ConfigError as error:  # a schema with its own ids, which only the validator can follow
            reasons = [error.message]
        except ValueError as error:  # from the validator: a set, a key that is not a string, half of a character
            reasons = [f"they cannot be written as JSON ({_cut(str(error), 120)})"]
        except RecursionError:
            reasons = ["they are nested too deeply"]
        raise ToolError(_message(self._tool, reasons), code="invalid_arguments")

    def _with_defaults(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in self._whole:
            given = arguments.get(name)
            if isinstance(given, float) and given.is_integer():  # JSON Schema treats `5.0` as an integer
                arguments = arguments | {name: int(given)}
        absent = {name: default for name, default in self._defaults if name not in arguments}
        for name, default in absent.items():
            if isinstance(default, dict | list):
                absent[name] = copy.deepcopy(default)
        return arguments | absent if absent else arguments

    def _as_meant(self, value: Any, schema: Any) -> Any:
        """Return `value` without nulls and with JSON text decoded, where the schema allows no other meaning."""
        if not isinstance(value, str | dict | list):
            return value
        schema = self._schema.followed(schema)
        if isinstance(value, str):
            return self._text_as_meant(value, schema)
        for part in schema.get("allOf", ()):
            value = self._as_meant(value, part)
        union = (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
        forms = [form for form in union if self._schema.admits_type_of(form, value)]
        for form in forms:
            meant = self._as_meant(value, form)
            if len(forms) == 1 or self._schema.fits(form, meant):
                value = meant
                break
        if isinstance(value, list):
            return [self._as_meant(item, own) for item, own in _items(value, schema)]
        return dict(self._members_as_meant(value, schema))

    def _text_as_meant(self, text: str, schema: Mapping[str, Any]) -> Any:
        kind = {"{": "object", "[": "array"}.get(text.lstrip()[:1])
        if kind is None or self._schema.admits(schema, "string") or not self._schema.admits(schema, kind):
            return text
        decoded = _decoded(text)
        return text if decoded is None else self._as_meant(decoded, schema)

    def _members_as_meant(self, value: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        for name, member in value.items():
            own = properties.get(name, schema.get("additionalProperties", True))
            if member is None and name in properties and name not in required and not self._schema.admits(own, "null"):
                continue
            yield name, self._as_meant(member, own)


class _ApplyCheck(ArgumentCheck):
    """Checks an `apply` that takes more than `input`."""

    def __init__(self, schema: Mapping[str, Any], *, tool: str, further: Iterable[str]) -> None:
        super().__init__(schema, tool=tool)
        self._further = tuple(further)

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        checked = super().__call__(arguments)
        if checked.get("input", ...) is None and any(name in checked for name in self._further):
            return {name: value for name, value in checked.items() if name != "input"}
        return checked


class _Schema:
    """A schema, with questions about its parts. Validators of parts are cached by the part's identity."""

    def __init__(self, root: Mapping[str, Any], tool: str) -> None:
        self.root = root
        self._tool = tool
        self._parts: dict[int, jsonschema_rs.Validator] = {}

    def followed(self, part: Any) -> Mapping[str, Any]:
        """Return the part with its `$ref` resolved, and `True` and `False` written out."""
        if isinstance(part, bool):
            return {} if part else _NOWHERE
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
        return all(self.admits(part, kind) for part in schema.get("allOf", ())) and all(
            any(self.admits(form, kind) for form in schema[union]) for union in ("anyOf", "oneOf") if union in schema
        )

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


class _Fault(NamedTuple):
    """A violated keyword, where, its value, and the value that was given."""

    keyword: str
    path: tuple[str | int, ...]
    wanted: Any
    given: Any


class _Faults:
    """Finds faults one by one.

    The validator's own list is complete before its first error, with a copy of the value in each: a megabyte of wrong
    items costs seconds, a megabyte of wrong keys all the memory.
    """

    def __init__(self, schema: _Schema) -> None:
        self._schema = schema

    def of(self, value: Any, part: Any, path: tuple[str | int, ...]) -> Iterator[_Fault]:
        """Yield why `value` does not fit `part`: at least one fault if it does not."""
        schema = self._schema.followed(part)
        found = False
        for fault in self._known(value, schema, path):
            found = True
            yield fault
        if not found:
            yield _Fault(self._unspoken(value, schema), path, None, value)

    def _unspoken(self, value: Any, schema: Mapping[str, Any]) -> str:
        """Return the keyword to blame if it has no sentence of its own."""
        for keywords in _BLAMED:
            alone = {key: schema[key] for key in keywords if key in schema}
            if keywords[0] in alone and not self._schema.alone(alone).is_valid(value):
                return keywords[0]
        return "unevaluatedProperties"

    def _known(self, value: Any, schema: Mapping[str, Any], path: tuple[str | int, ...]) -> Iterator[_Fault]:
        own = list(self._own(value, schema, path))
        yield from own
        if any(fault.keyword in ("type", "enum", "const") for fault in own):
            return
        if isinstance(value, dict):
            yield from self._members(value, schema, path)
        elif isinstance(value, list):
            for index, (item, item_schema) in enumerate(_items(value, schema)):
                if not self._schema.fits(item_schema, item):
                    yield from self.of(item, item_schema, (*path, index))
        for part in schema.get("allOf", ()):
            if not self._schema.fits(part, value):
                yield from self.of(value, part, path)
        for union in ("anyOf", "oneOf"):
            if union in schema and not any(self._schema.fits(form, value) for form in schema[union]):
                yield from self._no_form(value, schema[union], path)

    def _own(self, value: Any, schema: Mapping[str, Any], path: tuple[str | int, ...]) -> Iterator[_Fault]:
        """Yield faults of keywords that concern the value itself: at most one each."""
        own = {key: schema[key] for key in schema if key in _OWN}
        if not own:
            return
        if "$schema" in self._schema.root:
            own["$schema"] = self._schema.root["$schema"]
        validator = jsonschema_rs.validator_for(own)
        if not validator.is_valid(value):
            for error in validator.iter_errors(value):
                keyword = error.kind.name
                # For `exclusiveMinimum: true` of old drafts, the validator knows the number.
                yield _Fault(keyword, path, error.kind.as_dict().get("limit", schema[keyword]), value)

    def _members(
        self, value: dict[str, Any], schema: Mapping[str, Any], path: tuple[str | int, ...]
    ) -> Iterator[_Fault]:
        required = schema.get("required", ())
        missing = [name for name in required if name not in value]
        if missing:
            yield _Fault("required", path, (missing, required), value)
        properties = schema.get("properties", {})
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        whole = schema.get("unevaluatedProperties") is False
        known = property_names(schema, self._schema.root) if whole else list(properties)
        taken = [name for name in known if properties.get(name) is not _NOWHERE]
        for name, member in value.items():
            own = properties.get(name, others)
            if name not in known and (whole or others is False):
                yield _Fault("unknown", (*path, name), taken, member)
            elif own is _NOWHERE:
                yield _Fault("elsewhere", (*path, name), taken, member)
            elif not self._schema.fits(own, member):
                yield from self.of(member, own, (*path, name))

    def _no_form(self, value: Any, forms: Sequence[Any], path: tuple[str | int, ...]) -> Iterator[_Fault]:
        """Yield the faults of the form of a union that was probably meant; none of the forms fits."""
        near = [form for form in forms if self._schema.admits_type_of(form, value)]
        if not near:
            kinds = [kind for kind in _TYPES if any(self._schema.admits(form, kind) for form in forms)]
            yield _Fault("type", path, kinds, value)
            return
        if len(near) == 1:
            yield from self.of(value, near[0], path)
            return
        found = [list(itertools.islice(self.of(value, form, path), _MAX_FAULTS + 1)) for form in near]
        if all(fault.keyword == "required" and fault.path == path for faults in found for fault in faults):
            yield _Fault("choice", path, [fault.wanted[0] for faults in found for fault in faults], value)
            return
        tagged = [faults for faults in found if not any(fault.keyword in ("const", "enum") for fault in faults)]
        if tagged:
            yield from min(tagged, key=len)
            return
        tags = [fault for faults in found for fault in faults if fault.keyword in ("const", "enum")]
        options = [each for tag in tags for each in (tag.wanted if tag.keyword == "enum" else [tag.wanted])]
        yield _Fault("enum", tags[0].path, options, tags[0].given)


_TYPES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_RULES = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be greater than {}",
    "exclusiveMaximum": "must be less than {}",
    "multipleOf": "must be a multiple of {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "pattern": "must match {}",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "uniqueItems": "must not hold an item twice",
    "minProperties": "must have at least {} properties",
    "maxProperties": "must have at most {} properties",
}
_OWN = {"type", "enum", "const", *_RULES}
_BLAMED = (
    ("not",),
    ("contains", "minContains", "maxContains"),
    ("propertyNames",),
    ("patternProperties", "properties", "additionalProperties"),
    ("if", "then", "else"),
    ("dependentRequired",),
    ("dependentSchemas",),
    ("dependencies",),
    ("oneOf",),
)
_MAX_FAULTS = 5
_MAX_CORRECTED = 50_000
"""Parts of arguments that are still corrected: half a million would hold the loop up for a second."""
_MAX_SHOWN = 10


def _has_more_parts(value: Any, most: int) -> bool:
    parts = [value]
    for _ in range(most):
        if not parts:
            return False
        part = parts.pop()
        if isinstance(part, dict | list):
            parts.extend(part.values() if isinstance(part, dict) else part)
    return True


def _message(tool: str, reasons: Sequence[str]) -> str:
    start = f"Invalid arguments for `{tool}`:"
    if len(reasons) == 1:
        return f"{start} {reasons[0]}"
    more = ["…and more"] if len(reasons) > _MAX_FAULTS else []
    return "\n- ".join([start, *reasons[:_MAX_FAULTS], *more])


def _sentence(fault: _Fault, tool: str) -> str:
    """Return what is wrong, what was given, and what would be right."""
    keyword, path, wanted, given = fault
    place = f"`{_path(path)}`" if path else "the arguments"
    match keyword:
        case "required":
            missing, required = wanted
            return f"missing {_names(missing)}{f' in {place}' if path else ''}; required: {_names(required)}"
        case "choice":
            choice = " or ".join(_names(names) for names in wanted)
            return f"{place} needs {choice}" if path else f"give {choice}"
        case "unknown":
            near = difflib.get_close_matches(_cut(str(path[-1])), wanted, 1)
            return f"unknown argument {place}; " + (
                f"did you mean `{near[0]}`?" if near else f"known: {_names(wanted)}"
            )
        case "elsewhere":
            return f"{place} goes with another `action`; `{tool}` takes {_names(wanted)}"
        case "type":
            kinds = [wanted] if isinstance(wanted, str) else wanted
            return f"{place} must be {' or '.join(_TYPES[kind] for kind in kinds)}, not {_shown(given)}"
        case "const":
            return f"{place} must be {_shown(wanted)}, not {_shown(given)}"
        case "enum":
            return f"{place} must be one of {', '.join(_some(map(_shown, wanted)))}, not {_shown(given)}"
    rule = _RULES.get(keyword, f"does not satisfy `{keyword}` of the schema").format(_cut(str(wanted), 80))
    return f"{place} {rule}; it is {_shown(given)}"


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema, closed for unknown properties unless it says otherwise."""
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return dict(schema)
    elsewhere = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")
    keyword = "unevaluatedProperties" if any(key in schema for key in elsewhere) else "additionalProperties"
    return {**schema, keyword: False}


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


def _items(value: list[Any], schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Return an array's items, each with its schema."""
    items = schema.get("items", True)
    first, rest = (items, True) if isinstance(items, list) else (schema.get("prefixItems", ()), items)
    return zip(value, itertools.chain(first, itertools.repeat(rest)), strict=False)


def _decoded(text: str) -> Any:
    """Return the decoded JSON; None if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None


def _path(parts: Iterable[str | int]) -> str:
    steps = [f"[{part}]" if isinstance(part, int) else f".{_cut(part)}" for part in parts]
    return _cut("".join(steps).removeprefix("."), 120)


def _cut(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _some(texts: Iterable[str]) -> list[str]:
    """Return the first few, and `…` if there are more."""
    first = list(itertools.islice(texts, _MAX_SHOWN + 1))
    return [*first[:_MAX_SHOWN], "…"] if len(first) > _MAX_SHOWN else first


def _names(names: Iterable[str]) -> str:
    return ", ".join(_some(f"`{_cut(name)}`" for name in names)) or "none"


def _shown(value: Any) -> str:
    """Return enough of a value to recognise it."""
    match value:
        case str():
            text = msgspec.json.encode(value[:60]).decode()
            return text if len(value) <= 60 else f'{text[:-1]}…" ({len(value)} characters)'
        case None | bool():
            return str(msgspec.json.encode(value), "ascii")
        case int() if value.bit_length() > 128:
            return "a huge integer"
        case dict():
            return "an object"
        case list() | tuple():
            return "an array"
    return _cut(str(value))
