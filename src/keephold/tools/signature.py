"""From a function's signature and docstring to a JSON schema, and from JSON arguments back to Python ones."""

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from keephold.durable.deferred import Pending
from keephold.errors import ConfigError, ToolError
from keephold.handles.state import Reply
from keephold.tools.call import Call

_PLAIN = (str, int, float, bool, dict, list, Any)
_ARGS = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$")
_SECTION = re.compile(r"^\s*[A-Z]\w+:\s*$")
_ARG = re.compile(r"^(\s+)(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Signature:
    """How a function is called as a tool."""

    description: str
    parameters: Mapping[str, Any]
    call_parameter: str | None
    model: type[BaseModel] | None
    """Turns JSON into the annotated types; None when all of them are plain JSON already."""
    returns: Mapping[str, Any] | None = None
    """JSON Schema of the object that it returns, if it declares one."""
    parks: bool = False
    """Whether it may return `Pending`: it says so, or does not say what it returns (D1)."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Signature":
        hints = get_type_hints(function, include_extras=True)
        description, argument_texts = read_docstring(inspect.getdoc(function) or "")
        call_parameter, fields, plain = None, {}, True
        for at, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigError(
                    [f"tool `{function.__name__}`: parameter `{name}` must be a plain named one; a model sends names"]
                )
            annotation = hints.get(name, Any)
            if annotation is Call or (at == 0 and name == "call" and name not in hints):
                call_parameter = name
                continue
            plain = plain and annotation in _PLAIN
            default = ... if parameter.default is parameter.empty else parameter.default
            info = FieldInfo.from_annotated_attribute(annotation, default) if default is not ... else None
            info = info or FieldInfo.from_annotation(annotation)
            if info.description is None:
                info.description = argument_texts.get(name)
            fields[name] = (annotation, info)
        with warnings.catch_warnings():
            # A parameter may be called `schema` or `copy`: the model's methods of that name are not used.
            warnings.filterwarnings("ignore", "Field name .* shadows an attribute", UserWarning)
            model = create_model(
                function.__name__, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields
            )  # type: ignore[call-overload]
        schema = _tidy(model.model_json_schema())
        schema.setdefault("properties", {})
        returns = _returned(hints.get("return"))
        returned = hints.get("return", Pending)
        parks = call_parameter is not None and Pending in (returned, *get_args(returned))
        return cls(description, schema, call_parameter, None if plain else model, returns, parks)

    def bind(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return keyword arguments for the function. `arguments` fit the schema already."""
        if self.model is None:
            kwargs = dict(arguments)
        else:
            try:
                bound = self.model.model_validate(arguments)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise ToolError(f"argument `{where}`: {first['msg']}", code="invalid_arguments") from None
            kwargs = {name: getattr(bound, name) for name in arguments}
        if self.call_parameter is not None:
            kwargs[self.call_parameter] = call
        return kwargs


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description, and the texts of an `Args:` section by parameter."""
    lines, description, arguments = text.splitlines(), [], {}
    in_args, current = False, ""
    for line in lines:
        if _ARGS.match(line):
            in_args = True
        elif in_args and _SECTION.match(line) and not line.startswith(" "):
            in_args = False
            description.append(line)
        elif in_args:
            found = _ARG.match(line)
            if found and len(found[1]) <= 4:
                current = found[2]
                arguments[current] = found[3].strip()
            elif current and line.strip():
                arguments[current] = f"{arguments[current]} {line.strip()}".strip()
        else:
            description.append(line)
    return "\n".join(description).strip(), arguments


def _returned(annotation: Any) -> dict[str, Any] | None:
    """Return the schema of a returned dataclass, TypedDict or Struct, ignoring `Pending` (D1)."""
    union = get_origin(annotation) in (Union, UnionType)
    parts = [part for part in get_args(annotation) if part is not Pending] if union else [annotation]
    if len(parts) != 1 or not isinstance(parts[0], type) or parts[0] in (Reply, Pending):
        return None
    try:
        (reference,), defined = msgspec.json.schema_components(parts, ref_template="#/$defs/{name}")
    except (TypeError, NameError):  # JSON Schema cannot express it
        return None
    root = defined.pop(str(reference.get("$ref")).rpartition("/")[2], None)
    if root is None or root.get("type") != "object":
        return None
    return _tidy({**root, "$defs": defined} if defined else root)  # type: ignore[no-any-return]


def _tidy(schema: Any) -> Any:
    """Remove the titles that pydantic adds: a model has no use for them."""
    if isinstance(schema, dict):
        return {
            key: (
                {name: _tidy(part) for name, part in value.items()} if key in ("properties", "$defs") else _tidy(value)
            )
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    return schema
