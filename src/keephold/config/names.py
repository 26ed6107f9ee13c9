"""Names that a template of the configuration uses and no call will ever have.

Only what is certain is named: a variable that nothing sets, and a key that is written out, as in `tool.arguments.path`
or `tool["arguments"]`. What a template works out by itself is left to the call.
"""

import difflib
from collections.abc import Collection, Iterator

from jinja2 import Environment, TemplateSyntaxError, meta, nodes

from keephold.config.source import TOOLS, dotted

SEEN = {
    "tool": ("name", "arguments", "answers", "options"),
    "context": ("action", "root", "conversation_id", "turn_id", "call_id"),
}
"""What templates see (F1)."""

_environment = Environment()  # it only parses


def unknown_names(text: str, parameters: Collection[str] | None, tool: str) -> list[str]:
    """A sentence for each name in a template that is not there; without `parameters`, those of the tool are not known.

    What is no template has been named before; a string of several is one only as long as they share no block.
    """
    try:
        tree = _environment.parse(text)
        unset = meta.find_undeclared_variables(tree) - SEEN.keys() - _environment.globals.keys()
    except TemplateSyntaxError:
        return []
    found = [_unknown_variable(name, parameters or ()) for name in sorted(unset)]
    for path in _paths(tree):
        found += _unknown_key(path, parameters, tool)
    return list(dict.fromkeys(found))


def _unknown_variable(name: str, parameters: Collection[str]) -> str:
    near = difflib.get_close_matches(name, parameters, n=1)
    meant = [f"tool.arguments.{name if name in parameters else near[0]}"] if near else []
    meant += [f"{seen}.{name}" for seen, keys in SEEN.items() if name in keys]
    meant += difflib.get_close_matches(name, SEEN, n=1)
    right = f"did you mean `{{{{ {meant[0]} }}}}`?" if meant else "a parameter is `{{ tool.arguments.<name> }}`"
    return f"`{name}` is unknown: templates see `tool` and `context`; {right}"


def _unknown_key(path: tuple[str, ...], parameters: Collection[str] | None, tool: str) -> Iterator[str]:
    match path:
        case (seen, key, *_) if key not in SEEN[seen]:
            yield f"`{seen}.{key}` is unknown; {_known(key, SEEN[seen])}"
        case ("tool", "arguments", name, *_) if parameters is not None and name not in parameters:
            yield f"`tool.arguments.{name}`: `{tool}` has no such parameter; " + (
                _known(name, parameters) if parameters else f"add [{dotted((*TOOLS, tool, 'parameters', name))}]"
            )


def _known(key: str, known: Collection[str]) -> str:
    listed = ", ".join(f"`{each}`" for each in known)
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    return f"known: {listed}{hint}"


def _paths(tree: nodes.Template) -> Iterator[tuple[str, ...]]:
    """Every chain of written-out keys that begins with `tool` or `context`, from its start to its end."""
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        keys: list[str] = []
        inner: nodes.Node = node
        while isinstance(inner, nodes.Getattr | nodes.Getitem):
            key = _written_out(inner)
            keys = [] if key is None else [key, *keys]
            inner = inner.node
        if isinstance(inner, nodes.Name) and inner.name in SEEN and inner.name not in own and keys:
            yield (inner.name, *keys)


def _written_out(node: nodes.Getattr | nodes.Getitem) -> str | None:
    if isinstance(node, nodes.Getattr):
        return node.attr
    return node.arg.value if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str) else None
