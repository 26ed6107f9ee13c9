"""Why arguments do not fit a schema, in sentences that stay short and that a model can act on (C9)."""

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec

from keephold.schema.canonical import property_names
from keephold.schema.parts import NOWHERE, SchemaParts, items_of


def explained(arguments: Any, schema: SchemaParts, tool: str) -> list[str]:
    """Return why the arguments do not fit, a sentence for each fault; one more than `_MAX_FAULTS` at most."""
    faults = _Faults(schema).of(arguments, schema.root, ())
    return [_sentence(fault, tool) for fault in itertools.islice(faults, _MAX_FAULTS + 1)]


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

    def __init__(self, schema: SchemaParts) -> None:
        self._schema = schema
        self._tried = 0

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
            for index, (item, item_schema) in enumerate(items_of(value, schema)):
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
        taken = [name for name in known if properties.get(name) is not NOWHERE]
        for name, member in value.items():
            own = properties.get(name, others)
            if name not in known and (whole or others is False):
                yield _Fault("unknown", (*path, name), taken, member)
            elif own is NOWHERE:
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
        self._tried += len(near)
        if self._tried > MAX_TRIED:
            yield _Fault("anyOf", path, None, value)
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
MAX_TRIED = 200
"""Forms of unions that are tried: in a union of objects that have that union in them, they multiply with the depth."""
_MAX_FAULTS = 5
_MAX_SHOWN = 10


def message(tool: str, reasons: Sequence[str]) -> str:
    start = f"Invalid arguments for `{tool}`:"
    if len(reasons) == 1:
        return f"{start} {reasons[0]}"
    more = ["…and more"] if len(reasons) > _MAX_FAULTS else []
    return "\n- ".join([start, *reasons[:_MAX_FAULTS], *more])


def _sentence(fault: _Fault, tool: str) -> str:
    """Return what is wrong, what was given, and what would be right."""
    keyword, path, wanted, given = fault
    place = f"`{path_of(path)}`" if path else "the arguments"
    match keyword:
        case "required":
            missing, required = wanted
            return f"missing {_names(missing)}{f' in {place}' if path else ''}; required: {_names(required)}"
        case "choice":
            choice = " or ".join(_names(names) for names in wanted)
            return f"{place} needs {choice}" if path else f"give {choice}"
        case "unknown":
            near = difflib.get_close_matches(cut(str(path[-1])), wanted, 1)
            return f"unknown argument {place}; " + (
                f"did you mean `{near[0]}`?" if near else f"known: {_names(wanted)}"
            )
        case "elsewhere":
            return f"{place} goes with another `action`; `{tool}` takes {_names(wanted)}"
        case "type":
            kinds = [wanted] if isinstance(wanted, str) else wanted
            return f"{place} must be {' or '.join(_TYPES[kind] for kind in kinds)}, not {shown(given)}"
        case "const":
            return f"{place} must be {shown(wanted)}, not {shown(given)}"
        case "enum":
            return f"{place} must be one of {', '.join(_some(map(shown, wanted)))}, not {shown(given)}"
    rule = _RULES.get(keyword, f"does not satisfy `{keyword}` of the schema").format(cut(str(wanted), 80))
    return f"{place} {rule}; it is {shown(given)}"


def path_of(parts: Iterable[str | int]) -> str:
    steps = [f"[{part}]" if isinstance(part, int) else f".{cut(part)}" for part in parts]
    return cut("".join(steps).removeprefix("."), 120)


def cut(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _some(texts: Iterable[str]) -> list[str]:
    """Return the first few, and `…` if there are more."""
    first = list(itertools.islice(texts, _MAX_SHOWN + 1))
    return [*first[:_MAX_SHOWN], "…"] if len(first) > _MAX_SHOWN else first


def _names(names: Iterable[str]) -> str:
    return ", ".join(_some(f"`{cut(name)}`" for name in names)) or "none"


def shown(value: Any) -> str:
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
    return cut(str(value))
