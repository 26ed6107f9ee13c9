"""Forms (Q1): one question with several fields, whose answer is an object of texts, numbers, booleans and choices.

A form is kept as the question's `answer_type`: `{"Form": {"properties": {…}, "required": […]}}`, in the part of JSON
Schema that MCP's elicitation has. Schemas come from foreign servers, so only harmless keywords are kept.
"""

import math
from collections.abc import Mapping
from typing import Any

from keephold.text import exact, json_text, to_json

MOST_FIELDS = 100
MOST_BYTES = 65_536
"""Bytes of a form's schema, which the model reads. Results have limits, and a question must not be a way around."""
_MOST_NUMBER = 1e300
_TEXTS, _NUMBERS, _COUNTS = (
    ("title", "description"),
    ("minimum", "maximum"),
    ("minLength", "maxLength", "minItems", "maxItems"),
)
_KEPT = (*_TEXTS, "default", "format", *_NUMBERS, *_COUNTS)
_FORMATS = {
    "email": "an email address",
    "uri": "a URI, such as https://example.com/",
    "date": "a date, such as 2026-01-31",
    "date-time": "a date and time, such as 2026-01-31T12:00:00Z",
}
_BOUNDS = {"minimum": "at least", "maximum": "at most", "minItems": "at least", "maxItems": "at most"}
_WORDS = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
_KINDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}

Form = Mapping[str, Any]
"""`properties` and `required` of an object."""


def form_from(schema: Any) -> dict[str, Any]:
    """Return the form that a JSON Schema describes, without optional fields that cannot be asked.

    Raises `ValueError` if a required field cannot be asked, or it is not such a schema.
    """
    if len(to_json(schema)) > MOST_BYTES:
        raise ValueError(f"the schema of a form may have {MOST_BYTES} bytes, and this one has more")
    properties = (schema.get("properties") or {}) if isinstance(schema, Mapping) else None
    needed = (schema.get("required") or []) if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not isinstance(needed, list | tuple):
        raise ValueError("a form is the JSON Schema of an object, with `properties` and `required`")
    required = list(dict.fromkeys(name for name in needed if isinstance(name, str) and name in properties))
    fields = ((name, _field(table)) for name, table in properties.items() if is_text(str(name)))
    known = {name: field for name, field in fields if field is not None}
    missing = ", ".join(f"`{name}`" for name in required if name not in known)
    if missing or (properties and not known):
        raise ValueError(
            "a form may have texts, numbers, booleans and choices, "
            + (f"and {missing} is none of these" if missing else "and this one has none")
        )
    if len(known) > MOST_FIELDS:
        raise ValueError(f"a form may have {MOST_FIELDS} fields, and this one has {len(known)}")
    return {"properties": known, "required": required}


def _field(table: Any) -> dict[str, Any] | None:
    """Return a field with the keywords that are kept; None if it cannot be asked."""
    kind = table.get("type") if isinstance(table, Mapping) else None
    several = kind == "array"
    choices = _choices(table.get("items") if several else table, several) if isinstance(table, Mapping) else None
    if kind is None and choices:
        kind = "string"
    if kind not in (*_KINDS, "array") or choices == {} or (several and not choices):
        return None
    field: dict[str, Any] = {"type": kind} | {key: table[key] for key in _KEPT if _is_right(key, table.get(key))}
    if choices and several:
        field["items"] = choices
    elif choices:
        field |= choices
    if "default" in field and problem_of({"properties": {"it": field}, "required": ()}, {"it": field["default"]}):
        del field["default"]
    return field


def _is_right(key: str, value: Any) -> bool:
    """Return whether a keyword has a value that it may have."""
    if key in _TEXTS:
        return isinstance(value, str) and is_text(value)
    if key in _NUMBERS:
        return _is_number(value) and -_MOST_NUMBER < value < _MOST_NUMBER  # the validator takes no infinity
    if key in _COUNTS:
        return _is_number(value) and isinstance(value, int) and value >= 0
    return isinstance(value, str) and value in _FORMATS if key == "format" else value is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _choices(table: Any, several: bool) -> dict[str, Any] | None:
    """Return the keywords of a choice: empty if its values cannot be chosen, None if it is not one.

    MCP has `oneOf` and `enumNames` for titles of a choice of one value, and only `anyOf` for one of several.
    """
    if not isinstance(table, Mapping):
        return None
    for union in ("oneOf", "anyOf"):
        if union in table:
            parts = table[union] if isinstance(table[union], list) else []
            const = [part.get("const") if isinstance(part, Mapping) else None for part in parts]
            titles = [str(part.get("title") or part["const"]) for part in parts] if all(map(_is_value, const)) else []
            return _titled(const, titles, "anyOf" if several else "oneOf") if titles else {}
    if "enum" in table:
        values, names = table["enum"], table.get("enumNames")
        if not isinstance(values, list) or not values or not all(map(_is_value, values)):
            return {}
        named = isinstance(names, list) and len(names) == len(values)
        return _titled(
            values, list(map(str, names if named and names else values)), "anyOf" if several else "enumNames"
        )
    return None


def _titled(values: list[Any], titles: list[str], how: str) -> dict[str, Any]:
    useless = titles == list(map(str, values)) or len(set(titles)) < len(values)  # they say nothing, or the same
    if useless or not all(map(is_text, titles)):
        return {"type": "string", "enum": values}
    if how == "enumNames":
        return {"type": "string", "enum": values, "enumNames": titles}
    return {how: [{"const": value, "title": title} for value, title in zip(values, titles, strict=True)]}


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and value != "" and is_text(value)


def is_text(text: str) -> bool:
    """Return whether a string can be written: half of a surrogate pair is kept by no store and read by no program."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def problem_of(form: Form, answer: Any) -> str | None:
    """Return what is wrong with an answer; None if it fits. A required field with a default may be left out."""
    import jsonschema_rs  # takes a while, and most runtimes never see a form

    if not isinstance(answer, Mapping):
        return "the answer must be " + expected_form(form)
    fields = form["properties"]
    required = [name for name in form["required"] if "default" not in fields[name]]
    schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
    check = jsonschema_rs.validator_for(schema, validate_formats=True, offline=True)
    try:
        wrong = next(iter(check.iter_errors(dict(answer))), None)
    except ValueError as error:
        return f"the answer is not JSON: {error}"
    if wrong is None:
        return None
    where = "".join(f"`{name}`: " for name in wrong.instance_path[:1])
    what = wrong.message
    if wrong.schema_path[-1] == "format":
        (name,) = wrong.instance_path
        what = f"{json_text(wrong.instance)[:100]} is not {_FORMATS[fields[str(name)]['format']]}"
    return exact(f"{where}{what}"[:300])


def expected_form(form: Form) -> str:
    """Describe the answers that a form accepts."""
    required = form["required"]
    fields = (f"`{name}` ({_kind(field)}{', required' * (name in required)})" for name, field in fields_of(form))
    return "an object with the fields " + ", ".join(fields)


def fields_of(form: Form) -> list[tuple[str, Mapping[str, Any]]]:
    return list(form["properties"].items())


def _kind(field: Mapping[str, Any]) -> str:
    options = options_of(field)
    if options is None:
        return str(field.get("format") or _KINDS[field["type"]])
    return ("several" if field["type"] == "array" else "one") + " of " + ", ".join(f'"{value}"' for value, _ in options)


def options_of(field: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Return the values of a choice and their titles; None if it is not one."""
    table = field.get("items", field)
    for union in ("oneOf", "anyOf"):
        if union in table:
            return [(part["const"], part["title"]) for part in table[union]]
    return list(zip(table["enum"], table.get("enumNames", table["enum"]), strict=True)) if "enum" in table else None


def described_fields(form: Form) -> list[str]:
    """Return a line for each field: its name, type or choices, bounds, whether it may be left out, and its title."""
    lines = []
    for name, field in fields_of(form):
        notes = ", ".join([_kind(field), *_limits(field, name in form["required"])])
        title = f" ({field['title']})" if "title" in field else ""
        lines.append(exact(f"{name}: {notes}{title}"))
    return lines


def _limits(field: Mapping[str, Any], required: bool) -> list[str]:
    return [f"{said} {field[key]}" for key, said in _BOUNDS.items() if key in field] + ["optional"] * (not required)


def label_of(name: str, field: Mapping[str, Any], required: bool) -> str:
    """Return a field's title, with its kind if that is not obvious, and whether it may be left empty."""
    notes = [] if field["type"] in ("string", "boolean") and "format" not in field else [_kind(field)]
    notes += _limits(field, required)
    title = str(field.get("title") or name)
    return exact(f"{title} ({', '.join(notes)})" if notes else title)


def read_field(field: Mapping[str, Any], text: str) -> Any:
    """Return the value that a typed text stands for; of a choice, its title or number. Other texts stay as they are."""
    said = text.strip()
    match field["type"]:
        case "boolean":
            return _WORDS.get(said.lower(), text)
        case "integer" | "number":
            try:
                number = float(said)
            except ValueError:
                return text
            whole = math.isfinite(number) and number == int(number)
            return text if not math.isfinite(number) else int(said) if whole and said.lstrip("+-").isdigit() else number
        case "array":
            return [_chosen(field, part.strip()) for part in said.split(",") if part.strip()]
    return _chosen(field, text) if options_of(field) else text.removesuffix("\n")


def _chosen(field: Mapping[str, Any], text: str) -> str:
    options, said = options_of(field) or [], text.strip()
    if any(text == value for value, _ in options):
        return text
    if said.isdecimal() and 1 <= int(said) <= len(options) and all(said != value for value, _ in options):
        return options[int(said) - 1][0]
    return next((value for value, title in options if said in (value, title)), said)


def as_typed(value: Any) -> str:
    """Return a value as `read_field` reads it."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_form(form: Form, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer that typed texts stand for. An empty text leaves its field out."""
    return {name: read_field(field, texts[name]) for name, field in fields_of(form) if texts.get(name, "").strip()}


def filled(form: Form, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer with the defaults of required fields that it leaves out."""
    fields = form["properties"]
    missing = (name for name in form["required"] if name not in answer and "default" in fields[name])
    return {**answer, **{name: fields[name]["default"] for name in missing}}
