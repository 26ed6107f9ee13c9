"""Writes the parts of the reference that are made from code: the operations and shapes of the API, and error codes.

`make docs` runs it. A generated part stands between two comments of its page, `<!-- generated: NAME -->` and
`<!-- end of NAME -->`; everything around them is written by hand. A test fails when a page is not what it would be.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keephold.errors import CODES
from keephold.serve.api_operations import OPERATIONS
from keephold.serve.operations import STATUS, Operation, Parameter, described, shapes

REFERENCE = Path(__file__).parent / "reference"
_REGION = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end of \2 -->\n)", re.DOTALL)
_ADVICE = re.compile(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", re.MULTILINE)

Schema = Mapping[str, Any]


def written(page: Path) -> str:
    """The page with its generated parts as they should be."""
    return _REGION.sub(lambda found: f"{found[1]}\n{_PARTS[found[2]](found[3])}\n{found[4]}", page.read_text())


# The API


def _operations(_: str) -> str:
    description = described(OPERATIONS, "")
    lines: list[str] = []
    for tag in dict.fromkeys(each.tag for each in OPERATIONS):
        lines += [f"## {tag.capitalize()}", ""]
        lines += [line for each in OPERATIONS if each.tag == tag for line in _operation(each, description)]
    return "\n".join(lines)


def _operation(operation: Operation, description: Schema) -> Iterator[str]:
    path = operation.path.replace(":path}", "}")
    said = description["paths"][path][operation.method.lower()]
    yield from (f"### `{operation.method} {path}`", "", operation.summary, "")
    if operation.query:
        yield from ("| parameter | type | means |", "|---|---|---|", *map(_parameter, operation.query), "")
    if operation.body is not None and operation.body["properties"]:
        required = operation.body.get("required", [])
        yield from ("| body | type | |", "|---|---|---|")
        yield from (
            f"| `{name}` | {_type(schema)} | {'required' if name in required else ''} |"
            for name, schema in operation.body["properties"].items()
        )
        yield ""
    refused = ", ".join(status for status in said["responses"] if status != "200")
    content = said["responses"]["200"]["content"]
    gives = (
        _gives(content["application/json"]["schema"])
        if operation.returns is not None
        else "A stream of [server-sent events](#streams)"
    )
    yield from (f"{gives}. Refused with {refused}.", "")


def _parameter(parameter: Parameter) -> str:
    means = parameter.description + (" Required." if parameter.required else "")
    return f"| `{parameter.name}` | {_type(parameter.schema)} | {means} |"


def _gives(schema: Schema) -> str:
    if schema.get("type") == "object":
        means = schema.get("description", "").rstrip(".")
        return f"Returns an object: {means}" if means else "Returns an object"
    return f"Returns {_type(schema)}"


def _type(schema: Schema) -> str:
    """A schema in a few words."""
    match schema:
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            return f"[`{name}`](#{name.lower()})"
        case {"anyOf": list(options)}:
            return " or ".join(map(_type, options))
        case {"enum": list(choices)}:
            return ", ".join("null" if choice is None else f"`{choice}`" for choice in choices)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "object", "properties": properties}:
            return "object of " + ", ".join(f"`{name}`" for name in properties)
        case {"type": [*types]}:
            return " or ".join(map(str, types))
        case {"type": "integer", "minimum": least, "maximum": most} if most < 2**53:
            return f"integer, {least} to {most}"
        case {"type": str(kind)}:
            return kind
    return "any JSON"


def _shapes(_: str) -> str:
    return "\n".join(line for name, schema in sorted(shapes(OPERATIONS)[1].items()) for line in _shape(name, schema))


def _shape(name: str, schema: Schema) -> Iterator[str]:
    yield from (f"### `{name}`", "")
    if "description" in schema:
        yield from (schema["description"], "")
    if "properties" not in schema:
        return
    yield from ("| key | type | |", "|---|---|---|")
    for key, each in schema["properties"].items():
        note = each.get("description", "") if key in schema["required"] else "may be missing"
        yield f"| `{key}` | {_type(each)} | {note} |"
    yield ""


# Errors


def _statuses(_: str) -> str:
    rows = [
        f"| {status} | {', '.join(f'`{code}`' for code in sorted(STATUS) if STATUS[code] == status)} |"
        for status in sorted(set(STATUS.values()))
    ]
    return "\n".join(("| status | codes |", "|---|---|", *rows, "| 409 | any other |", ""))


def _codes(before: str) -> str:
    """Take the meaning of each code from the source, and keep the advice that the page has."""
    advice = dict(_ADVICE.findall(before))
    rows = [f"| `{code}` | {_cell(CODES[code])} | {advice.get(code, '')} |" for code in sorted(CODES)]
    return "\n".join(("| code | means | what to do |", "|---|---|---|", *rows, ""))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_PARTS: dict[str, Callable[[str], str]] = {
    "operations": _operations,
    "shapes": _shapes,
    "statuses": _statuses,
    "codes": _codes,
}

PAGES = [REFERENCE / "api.md", REFERENCE / "errors.md"]


def main() -> None:
    """Write all generated parts again."""
    for page in PAGES:
        page.write_text(written(page))


if __name__ == "__main__":
    main()
