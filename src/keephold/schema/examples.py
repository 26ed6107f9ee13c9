"""Arguments that fit a schema, made of wrong ones and of examples: the call that an error suggests (C9).

Values that fit are kept. A value of the wrong type is converted: 5 becomes "5", and a lone value becomes an array. Any
other wrong value becomes the nearest one that fits, a missing required one an example from the schema: its default, its
first example, its first enumerated value, the least number, a short text. The value of an unknown argument moves to the
name that is like its own; between units of time it is converted. Optional arguments that cannot be mended are left out.
The result is validated: arguments that still do not fit are not suggested.
"""

import contextlib
import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema_rs
import msgspec

from keephold.errors import ConfigError
from keephold.schema.parts import NOWHERE, SchemaParts, has_more_parts, items_of

_DEEPEST = 12
_MAX_MENDED = 500
"""Parts of arguments that are mended: a suggestion is short."""
_MAX_TRIED = 300
"""Values that are tried: a schema whose parts refer to one another has more than can be tried."""
_LONGEST_DECODED = 100
_FORMATS = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "duration": "PT1M",
    "email": "name@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "binary": "text",
    "path": "name",
}
_TEXTS = ("a", "A", "1", "0", "main", "a-b", "a_b", "a.b", "a/b", "1.0", "v1", "#000000", "example.com", "")
_MISSING: Any = object()
_SECONDS = {
    unit: seconds
    for seconds, units in (
        (0.001, "ms msec msecs millis millisecond milliseconds"),
        (1, "sec secs second seconds"),
        (60, "mins minute minutes"),
        (3600, "hour hours"),
    )
    for unit in units.split()
}
"""Units of time by which the names of arguments end."""


def mended(
    schema: SchemaParts, arguments: Mapping[str, Any], most: int, *, invented: bool = True
) -> dict[str, Any] | None:
    """Return arguments that fit, in at most `most` bytes of JSON; None if none were found.

    `invented`: a missing text may become a placeholder, such as `<path>`.
    """
    required = schema.root.get("required", ())
    needed = {name: value for name, value in arguments.items() if name in required}
    for given in (dict(arguments), needed, {}):  # of large arguments those that are required, else none
        if has_more_parts(given, _MAX_MENDED):
            continue
        try:
            made = _Mender(schema, invented).mended(given, schema.root, 0)
            if isinstance(made, dict) and schema.fits(schema.root, made) and len(msgspec.json.encode(made)) <= most:
                return made
        except (
            ConfigError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
        ):  # such arguments cannot even be written as JSON
            continue
    return None


class _Mender:
    """Mends the arguments of one call."""

    def __init__(self, schema: SchemaParts, invented: bool) -> None:
        self._schema = schema
        self._invented = invented
        self._joined: dict[int, tuple[Any, jsonschema_rs.Validator]] = {}
        """Forms of unions joined with what is around them, kept because the schema caches parts by identity."""
        self._tried = 0

    def _fits(self, part: Any, value: Any) -> bool:
        own = self._joined.get(id(part))
        return self._schema.fits(part, value) if own is None else own[1].is_valid(value)

    def _form(self, schema: Mapping[str, Any], form: Any) -> Any:
        """Return a form of a union together with the keywords beside the union."""
        if "properties" not in schema:
            return form
        around = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf", "$ref")}
        joined = {**around, **self._schema.followed(form)}
        self._joined[id(joined)] = (joined, self._schema.alone(joined))
        return joined

    def mended(self, value: Any, part: Any, depth: int) -> Any:
        """Return the value if it fits, else the nearest one that does, else an example; `_MISSING` if there is none."""
        kept = self._kept(value, part, depth)
        return self.example(part, depth) if kept is _MISSING else kept

    def _kept(self, value: Any, part: Any, depth: int) -> Any:
        """Return the value if it fits, else the nearest one that does; `_MISSING` if there is none."""
        if depth > _DEEPEST:
            return _MISSING
        schema = self._schema.followed(part)
        simple = not isinstance(value, dict) or "properties" not in schema or "anyOf" in schema or "oneOf" in schema
        if simple and self._fits(part, value) and _of_format(schema, value):
            return value
        near = self._near(value, schema, depth)
        if near is not _MISSING and self._fits(part, near):
            return near
        return next((each for each in self._converted(value, schema, depth) if self._fits(part, each)), _MISSING)

    def _converted(self, value: Any, schema: Mapping[str, Any], depth: int) -> Iterator[Any]:
        """Yield what a value of the wrong type may have been meant as."""
        self._tried += 1
        if self._tried > _MAX_TRIED:
            return
        if isinstance(value, list):
            yield from value if len(value) == 1 else ()
        elif isinstance(value, bool | int | float) and math.isfinite(value):
            yield msgspec.json.encode(value).decode()
        elif isinstance(value, str) and len(value) <= _LONGEST_DECODED:
            with contextlib.suppress(msgspec.DecodeError):
                yield msgspec.json.decode(value)
        if isinstance(value, str | bool | int | float) and self._schema.admits(schema, "array"):
            forms = (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ()))
            arrays = [form for form in map(self._schema.followed, forms) if "items" in form]
            for _, own in items_of([value], arrays[0] if arrays else {}):
                item = self._kept(value, own, depth + 1)
                yield from ([item],) if item is not _MISSING else ()

    def _near(self, value: Any, schema: Mapping[str, Any], depth: int) -> Any:
        for form in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            if self._schema.admits_type_of(form, value):
                made = self.mended(value, self._form(schema, form), depth + 1)
                if made is not _MISSING and self._fits(form, made):
                    return made
        if isinstance(value, dict):
            return self._members(value, schema, depth)
        if isinstance(value, list):
            items = [self.mended(item, own, depth + 1) for item, own in items_of(value, schema)]
            return [item for item in items if item is not _MISSING][: schema.get("maxItems")]
        if isinstance(value, str) and "enum" in schema:
            options = [each for each in schema["enum"][:_MAX_MENDED] if isinstance(each, str)]
            return next(iter(difflib.get_close_matches(value[:100], options, 1, 0.4)), _MISSING)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            low, high = schema.get("minimum", value), schema.get("maximum", value)
            nearest = min(max(value, low), high)
            return round(nearest) if schema.get("type") == "integer" else nearest
        return _MISSING

    def _members(self, value: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = schema.get("required", ())
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        made: dict[str, Any] = {}
        for name, member in value.items():
            own = properties.get(name, others)
            self._tried += 1
            if own is False and self._tried < _MAX_TRIED and len(properties) < _MAX_MENDED:
                free = [each for each in properties if each not in (*value, *made) and properties[each] is not NOWHERE]
                name, member = _moved(name, member, free, required)
                own = properties.get(name, False)
            if own is False or own is NOWHERE:
                continue
            kept = self._kept(member, own, depth + 1)
            if kept is not _MISSING and (name in required or kept == member or kept not in ("", [], {})):
                made[name] = kept
        for name in required:
            if name not in made:
                made[name] = self.example(properties.get(name, others), depth + 1, name)
        return {name: member for name, member in made.items() if member is not _MISSING}

    def example(self, part: Any, depth: int = 0, name: str = "text") -> Any:
        """Return a value that fits the part, of the argument `name`; `_MISSING` if none was found."""
        self._tried += 1
        if depth > _DEEPEST or self._tried > _MAX_TRIED:
            return _MISSING
        schema = self._schema.followed(part)
        for value in self._candidates(schema, depth, name):
            if value is not _MISSING and self._fits(part, value):
                return value
        return _MISSING

    def _candidates(self, schema: Mapping[str, Any], depth: int, name: str) -> Iterator[Any]:
        yield from (schema[key] for key in ("const", "default") if key in schema)
        for key in ("examples", "enum"):
            yield from schema[key][:20] if isinstance(schema.get(key), list) else ()
        for form in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
            yield self.example(self._form(schema, form), depth + 1, name)
        kinds = schema.get("type", ())
        for kind in (kinds,) if isinstance(kinds, str) else kinds:
            yield from self._of_type(kind, schema, depth, name)
        if not kinds:
            yield self._members({}, schema, depth) if "properties" in schema else self._placeholder(name)
            yield {}

    def _placeholder(self, name: str) -> Any:
        return f"<{name[:40]}>" if self._invented else _MISSING

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int, name: str) -> Iterator[Any]:
        match kind:
            case "string":
                length = max(schema.get("minLength", 1), 1)
                yield _FORMATS.get(schema.get("format", ""), self._placeholder(name))
                if self._invented:
                    yield from (*_TEXTS, "x" * min(length, 1000))
            case "integer" | "number":
                low = schema.get("minimum", schema.get("exclusiveMinimum", 1))
                high = schema.get("maximum", schema.get("exclusiveMaximum", 1))
                step = schema.get("multipleOf", 1)
                yield from (1, low, low + 1, high, high - 1, (low + high) / 2, step, math.ceil(low / step) * step)
            case "boolean":
                yield False
                yield True
            case "array":
                least = min(schema.get("minItems", 0), _MAX_MENDED)
                few = [self.example(own, depth + 1) for _, own in items_of([None] * least, schema)]
                yield few if _MISSING not in few else _MISSING
            case "object":
                yield self._members({}, schema, depth)
            case "null":
                yield None


def _of_format(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a text has the format of its schema. The check of arguments leaves that to the tool."""
    if not isinstance(value, str) or schema.get("format") not in _FORMATS:
        return True
    return jsonschema_rs.validator_for({"format": schema["format"]}, validate_formats=True).is_valid(value)


def _moved(name: str, member: Any, free: list[str], required: Sequence[str]) -> tuple[str, Any]:
    """Return the name that an unknown argument was probably meant to have, and its value in the unit of that name."""
    stem, seconds = _unit(name)
    if seconds is not None:
        timed = [(each, *_unit(each)) for each in free]
        timed = [(each, own, unit) for each, own, unit in timed if unit is not None]
        alike = [each for each in timed if each[1] == stem] or ([] if stem else timed)
        alike = alike if len(alike) == 1 else [each for each in alike if each[0] in required]
        if len(alike) == 1 and isinstance(member, int | float):
            converted = round(member * seconds / (alike[0][2] or 1), 6)
            return alike[0][0], int(converted) if converted.is_integer() else converted
        free = [each for each in free if _unit(each)[1] is None]
    return next(iter(difflib.get_close_matches(name[:100], free, 1)), name), member


def _unit(name: str) -> tuple[str, float | None]:
    """Return a name without its unit of time, and the seconds of that unit: `timeoutMs` has 0.001."""
    words = [word.lower() for word in re.findall("[A-Z]?[a-z0-9]+|[A-Z]+", name[:100])]
    seconds = _SECONDS.get(words[-1]) if words else None
    return "".join(words if seconds is None else words[:-1]), seconds
