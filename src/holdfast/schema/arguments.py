"""The check of a call's arguments against its tool's schema (C9, C10), and of an answer sent as text (G3).

`ArgumentCheck` is built once for a tool and action and called for every call. Arguments that fit cost one compiled
validation. The others are first read the way a dialect made the model write them:

- `null` for an optional property whose schema does not allow null means "left out", at any depth: strict dialects make
  every property required, and null is the only way a model has to leave one out.
- JSON text where the schema wants an object or an array, and no string would do, is decoded: dialects that cannot say
  "an object of any keys" ask for it as text.

Then the `default` of an absent top-level property is filled in; defaults deeper down are the tool's business. What
still does not fit is an `invalid_arguments` error that a model can act on, short however long the arguments are.

At the top level a schema that does not mention `additionalProperties` takes no others: a misspelt name is never lost.
"""

import copy
import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jsonschema_rs
import msgspec

from holdfast.errors import ToolError
from holdfast.handles.question import Question, answer_fits
from holdfast.schema.canonical import canonical, compiled, json_type, property_names, resolve, variant
from holdfast.tools.base import Action, Tool

_NOWHERE: dict[str, Any] = {"not": {}}
"""A schema nothing fits, in every draft: given to the names that only the tool's other actions take."""

_Kind = jsonschema_rs.ValidationErrorKind

_TYPE_NAMES = {
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "object": "an object",
    "string": "a string",
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
    "format": "must be of the format {}",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "uniqueItems": "must not hold an item twice",
    "minProperties": "must have at least {} properties",
    "maxProperties": "must have at most {} properties",
}

_MAX_ERRORS = 5
_MAX_SHOWN = 10
_MAX_VALUES_FOR_ALL_ERRORS = 1000


def check_for(tool: Tool, action: Action | None) -> "ArgumentCheck":
    """The check of a call of `tool`: of one of its actions, or one-shot (None: no `action`, no `id`)."""
    schema = dict(tool.parameters) if action is None else variant(tool, action)
    elsewhere: Iterable[str] = ()
    if tool.actions:
        # A flat dialect shows all actions' names at once, and a strict one makes the model send them all.
        elsewhere = set(property_names(canonical(tool))) - set(property_names(schema)) - {"action"}
    schema["properties"] = {**schema.get("properties", {}), **dict.fromkeys(elsewhere, _NOWHERE)}
    return ArgumentCheck(schema, tool=tool.name if action is None else f"{tool.name} {action}")


def decode_input(value: Any, question: Question) -> Any:
    """The answer meant by `apply`'s `input`: text that is JSON of the question's type is decoded, all else is kept."""
    if isinstance(value, str) and not answer_fits(question, value):
        decoded = _decoded(value)
        if answer_fits(question, decoded):
            return decoded
    return value


class ArgumentCheck:
    """Checks the arguments of one kind of call. `tool` is what errors call it: `git spawn`."""

    def __init__(self, schema: Mapping[str, Any], *, tool: str) -> None:
        self._tool = tool
        self._schema = _closed(schema)
        self._validator = compiled(self._schema, tool=tool)
        self._is_valid = self._validator.is_valid
        self._branches: dict[int, jsonschema_rs.Validator] = {}
        self._defaults = list(self._usable_defaults())

    def _usable_defaults(self) -> Iterator[tuple[str, Any]]:
        for name, own in self._schema.get("properties", {}).items():
            if isinstance(own, Mapping) and "default" in own:
                default = own["default"]
                # Some write `default: null` for "no default" beside a type that is never null.
                if default is not None or self._admits(own, "null"):
                    yield name, default

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, cleaned; the very same object when there was nothing to do. Raises `ToolError`."""
        try:
            if self._is_valid(arguments):
                return self._with_defaults(arguments)
            arguments = self._with_defaults(self._as_meant(arguments, self._schema))
            if self._is_valid(arguments):
                return arguments
            reasons = _Wording(self._schema, self._tool, arguments).sentences(self._errors(arguments))
        except ValueError as error:  # of the validator: a set, a key that is no string, half of a character
            reasons = [f"they cannot be written as JSON ({_cut(str(error), 120)})"]
        except RecursionError:
            reasons = ["they are nested too deeply"]
        raise ToolError(_message(self._tool, reasons), code="invalid_arguments")

    def _with_defaults(self, arguments: dict[str, Any]) -> dict[str, Any]:
        absent = {name: default for name, default in self._defaults if name not in arguments}
        for name, default in absent.items():
            if isinstance(default, dict | list):
                absent[name] = copy.deepcopy(default)
        return arguments | absent if absent else arguments

    def _as_meant(self, value: Any, schema: Any) -> Any:
        """`value` with nulls left out and JSON text decoded where the schema lets them mean nothing else."""
        if not isinstance(value, str | dict | list):
            return value
        schema = self._followed(schema)
        if isinstance(value, str):
            kind = {"{": "object", "[": "array"}.get(value.lstrip()[:1])
            if kind is None or self._admits(schema, "string") or not self._admits(schema, kind):
                return value
            decoded = _decoded(value)
            return value if decoded is None else self._as_meant(decoded, schema)
        for part in schema.get("allOf", ()):
            value = self._as_meant(value, part)
        forms = [
            form
            for form in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
            if self._admits(form, json_type(value))
        ]
        for form in forms:
            meant = self._as_meant(value, form)
            if len(forms) == 1 or self._branch(form).is_valid(meant):
                value = meant
                break
        if isinstance(value, list):
            first, rest = _item_schemas(schema)
            return [self._as_meant(item, own) for item, own in zip(value, first, strict=False)] + [
                self._as_meant(item, rest) for item in value[len(first) :]
            ]
        return dict(self._members_as_meant(value, schema))

    def _members_as_meant(self, value: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        for name, member in value.items():
            own = properties.get(name, schema.get("additionalProperties", True))
            if member is None and name in properties and name not in required and not self._admits(own, "null"):
                continue
            yield name, self._as_meant(member, own)

    def _admits(self, schema: Any, kind: str) -> bool:
        """Whether some value of this JSON type may fit, judging by types and enumerated values alone."""
        schema = self._followed(schema)
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

    def _followed(self, schema: Any) -> Mapping[str, Any]:
        """The schema with its `$ref` put in its place, `True` and `False` written out."""
        if isinstance(schema, bool):
            return {} if schema else _NOWHERE
        own: Mapping[str, Any] = schema
        for _ in range(64):  # a `$ref` that leads back to itself says nothing
            if "$ref" not in own:
                return own
            target = resolve(self._schema, own["$ref"])
            rest = {keyword: value for keyword, value in own.items() if keyword != "$ref"}
            own = {**target, **rest} if isinstance(target, Mapping) else self._followed(target)
        return {}

    def _branch(self, form: Any) -> jsonschema_rs.Validator:
        """A validator of one form of a union. `form` is part of the schema, so its identity lasts."""
        if id(form) not in self._branches:
            whole = {keyword: value for keyword, value in self._schema.items() if keyword != "$schema"}
            alone = _rebased({"allOf": [form], "$defs": {"whole": whole}})
            self._branches[id(form)] = compiled(alone, tool=self._tool)
        return self._branches[id(form)]

    def _errors(self, arguments: dict[str, Any]) -> list[jsonschema_rs.ValidationError]:
        """All errors, or the first one where there may be very many."""
        if _holds_more_than(arguments, _MAX_VALUES_FOR_ALL_ERRORS):
            # The validator makes every error before it gives the first: seconds for a large array of wrong items.
            try:
                self._validator.validate(arguments)
            except jsonschema_rs.ValidationError as error:
                return [error]
        return list(self._validator.iter_errors(arguments))


class _Wording:
    """Errors in words: what was wrong, what was given, what would be right."""

    def __init__(self, schema: Mapping[str, Any], tool: str, arguments: dict[str, Any]) -> None:
        self._schema = schema
        self._tool = tool
        self._arguments = arguments

    def sentences(self, errors: Sequence[jsonschema_rs.ValidationError]) -> list[str]:
        """Names missing from the same object share a sentence; all other errors have one each."""
        missing: dict[str, list[jsonschema_rs.ValidationError]] = {}
        others: list[str] = []
        for error in errors:
            if isinstance(error.kind, _Kind.Required):
                missing.setdefault(_path(error.instance_path), []).append(error)
            elif not (self._is_echo(error) and len(errors) > 1):
                others += self._sentence(error)
        return [self._missing(place, group) for place, group in missing.items()] + others

    def _is_echo(self, error: jsonschema_rs.ValidationError) -> bool:
        """A name known to a branch counts as unevaluated when the branch fails, for a reason told by itself."""
        match error.kind:
            case _Kind.UnevaluatedProperties(unexpected=names):
                return set(names) <= set(property_names(self._schema))
        return False

    def _missing(self, place: str, errors: Sequence[jsonschema_rs.ValidationError]) -> str:
        required = _at(self._schema, errors[0].schema_path)
        also = f"; required: {_names(required)}" if isinstance(required, list) else ""
        return f"missing {_names(_property(error) for error in errors)}{f' in `{place}`' if place else ''}{also}"

    def _sentence(self, error: jsonschema_rs.ValidationError) -> list[str]:
        place = f"`{_path(error.instance_path)}`" if error.instance_path else "the arguments"
        given = _shown(_at(self._arguments, error.instance_path))
        match error.kind:
            case _Kind.AdditionalProperties(unexpected=names) | _Kind.UnevaluatedProperties(unexpected=names):
                return self._unknown(error, names)
            case _Kind.AnyOf(context=forms) | _Kind.OneOfNotValid(context=forms):
                return self._no_form(error, forms, f"{place} {{}}, not {given}")
            case _Kind.Type(types=types):
                return [f"{place} must be {_either(types)}, not {given}"]
            case _Kind.Enum(options=options):
                return [f"{place} must be one of {_values(options)}, not {given}"]
            case _Kind.Constant(expected_value=value):
                return [f"{place} must be {_shown(value)}, not {given}"]
            case _Kind.Not() if _at(self._schema, error.schema_path[:-1]) is _NOWHERE:
                return [f"{place} goes with another `action`; `{self._tool}` takes {_names(self._taken([]))}"]
        limit = _cut(str(next(iter(error.kind.as_dict().values()), "")), 80)
        rule = _RULES.get(error.kind.name, f"does not satisfy `{error.kind.name}` of the schema")
        return [f"{place} {rule.format(limit)}; it is {given}"]

    def _taken(self, place: Sequence[str | int]) -> list[str]:
        """The names that the object schema at `place` has properties for."""
        schema = _at(self._schema, place) or {}
        properties = schema.get("properties", {})
        return (
            [name for name in properties if properties[name] is not _NOWHERE]
            if place
            else [name for name in property_names(schema) if properties.get(name) is not _NOWHERE]
        )

    def _unknown(self, error: jsonschema_rs.ValidationError, names: Sequence[str]) -> list[str]:
        known = self._taken(error.schema_path[:-1])
        sentences = []
        for name in names[: _MAX_ERRORS + 1]:
            near = difflib.get_close_matches(_cut(name), known, 1)
            right = f"did you mean `{near[0]}`?" if near else f"known: {_names(known)}"
            sentences.append(f"unknown argument `{_path([*error.instance_path, name])}`; {right}")
        return sentences

    def _no_form(
        self,
        error: jsonschema_rs.ValidationError,
        forms: Sequence[Sequence[jsonschema_rs.ValidationError]],
        frame: str,
    ) -> list[str]:
        """None of the forms of a union fits: tell of the one that was meant, where that can be seen."""
        here = error.instance_path
        types = [kind for form in forms for one in form for kind in _types(one, here)]
        meant = [form for form in forms if not any(_types(one, here) for one in form)]
        if not meant:
            return [frame.format(f"must be {_either(types)}")]
        if all(isinstance(one.kind, _Kind.Required) and one.instance_path == here for form in meant for one in form):
            choice = " or ".join(_names(_property(one) for one in form) for form in meant)
            return [f"{f'`{_path(here)}` needs' if here else 'give'} {choice}"]
        tagged = [form for form in meant if not any(isinstance(one.kind, _Kind.Constant | _Kind.Enum) for one in form)]
        if not tagged:
            options = [value for form in meant for one in form for value in _options(one)]
            tag = next(one for one in meant[0] if _options(one)).instance_path
            given = _shown(_at(self._arguments, tag))
            return [f"`{_path(tag)}` must be one of {_values(options)}, not {given}"]
        return self.sentences(min(tagged, key=len))


def _message(tool: str, reasons: Sequence[str]) -> str:
    start = f"Invalid arguments for `{tool}`:"
    if len(reasons) == 1:
        return f"{start} {reasons[0]}"
    more = ["…and more"] if len(reasons) > _MAX_ERRORS else []
    return "\n- ".join([start, *reasons[:_MAX_ERRORS], *more])


def _options(error: jsonschema_rs.ValidationError) -> list[Any]:
    match error.kind:
        case _Kind.Constant(expected_value=value):
            return [value]
        case _Kind.Enum(options=options):
            return options
    return []


def _types(error: jsonschema_rs.ValidationError, place: Sequence[str | int]) -> list[str]:
    """The types the value at `place` should have had, if that is what the error says."""
    match error.kind:
        case _Kind.Type(types=types) if error.instance_path == place:
            return types
    return []


def _property(error: jsonschema_rs.ValidationError) -> str:
    assert isinstance(error.kind, _Kind.Required)
    return error.kind.property


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, taking no properties it does not know unless it says that it does."""
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return dict(schema)
    elsewhere = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")
    keyword = "unevaluatedProperties" if any(key in schema for key in elsewhere) else "additionalProperties"
    return {**schema, keyword: False}


def _rebased(schema: Any) -> Any:
    """The schema with each `$ref` counted from `#/$defs/whole` instead of the root."""
    if isinstance(schema, list):
        return [_rebased(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _rebased(value) for key, value in schema.items()}
    ref = moved.get("$ref")
    return {**moved, "$ref": f"#/$defs/whole{ref[1:]}"} if isinstance(ref, str) else moved


def _item_schemas(schema: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The schemas of an array's first items, and that of the rest."""
    items = schema.get("items", True)
    return (items, True) if isinstance(items, list) else (schema.get("prefixItems", []), items)


def _decoded(text: str) -> Any:
    """The value whose JSON text this is; None if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None


def _holds_more_than(value: Any, limit: int) -> bool:
    held, rest = 0, [value]
    while rest and held <= limit:
        inner = rest.pop()
        if isinstance(inner, dict | list):
            held += len(inner)
            rest += itertools.islice(inner.values() if isinstance(inner, dict) else inner, limit)
    return held > limit


def _at(whole: Any, path: Sequence[str | int]) -> Any:
    """What is found at the path; None if nothing is, as in a schema with ids of its own.

    The validator writes a property called `0` like an index.
    """
    try:
        for part in path:
            whole = whole[str(part)] if isinstance(whole, Mapping) else whole[part]
    except (KeyError, IndexError, TypeError):
        return None
    return whole


def _path(parts: Sequence[str | int]) -> str:
    steps = [f"[{part}]" if isinstance(part, int) else f".{_cut(part)}" for part in parts]
    return _cut("".join(steps).removeprefix("."), 120)


def _cut(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _some(texts: Iterable[str]) -> list[str]:
    """The first few of them, and a sign when there are more."""
    first = list(itertools.islice(texts, _MAX_SHOWN + 1))
    return [*first[:_MAX_SHOWN], "…"] if len(first) > _MAX_SHOWN else first


def _names(names: Iterable[str]) -> str:
    return ", ".join(_some(f"`{_cut(name)}`" for name in names)) or "none"


def _values(values: Iterable[Any]) -> str:
    return ", ".join(_some(_shown(value) for value in values))


def _either(types: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(_TYPE_NAMES.get(kind, kind) for kind in types))


def _shown(value: Any) -> str:
    """A value in an error: enough to recognise it."""
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
