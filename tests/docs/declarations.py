"""How public names are declared, on a page and in the code, so that the two can be compared."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.docs.pages import sections


class Plain(ast.NodeTransformer):
    """Annotations without the quotes that stand around some of them."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = _unquoted(node.annotation)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = node.annotation and _unquoted(node.annotation)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = node.returns and _unquoted(node.returns)
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = node.returns and _unquoted(node.returns)
        return self.generic_visit(node)


def _unquoted(annotation: ast.expr) -> ast.expr:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def definitions(text: str, name: str) -> list[ast.stmt]:
    """What a text defines under the name: a class, or the forms of a function."""
    tree = Plain().visit(ast.parse(text))
    return [node for node in tree.body if getattr(node, "name", None) == name]


def members(node: ast.stmt) -> dict[str, str]:
    """The public members of a class, or a function alone, each as it is declared."""
    if not isinstance(node, ast.ClassDef):
        assert isinstance(node, ast.FunctionDef)
        return {node.name: f"{ast.unparse(node.args)} -> {ast.unparse(node.returns) if node.returns else ''}"}
    return {name: text for each in node.body for name, text in _member(each) if name[0] != "_" or name == "__init__"}


def _member(node: ast.stmt) -> Iterator[tuple[str, str]]:
    match node:
        case ast.FunctionDef(decorator_list=[ast.Name(id="property")]):
            yield node.name, ast.unparse(node.returns) if node.returns else ""
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            returns = ast.unparse(node.returns) if node.returns else ""
            yield node.name, f"{type(node).__name__}({ast.unparse(node.args)}) -> {returns}"
        case ast.AnnAssign(target=ast.Name(id=name)):
            default = f" = {ast.unparse(node.value)}" if node.value else ""
            yield name, ast.unparse(node.annotation) + default
        case ast.Assign(targets=[ast.Name(id=name)]):
            yield name, ast.unparse(node.value)


def attributes(node: ast.stmt) -> dict[str, str]:
    """What `__init__` puts on `self`, with its type where that is written."""
    found = {}
    for each in ast.walk(node):
        match each:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=annotation):
                found[name] = ast.unparse(annotation)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
                found[name] = ""
    return found


def signatures(page: Path, name: str) -> ast.stmt:
    """The declaration in the section of that name."""
    block = sections(page)[name].partition("<!-- signatures -->\n```python\n")[2].partition("```")[0]
    [node] = definitions(block, name)
    return node


def source(of: Any, name: str) -> ast.stmt:
    """The declaration in the code; of a function with several forms, the one with options."""
    forms = definitions(inspect.getsource(importlib.import_module(of.__module__)), name)
    return forms[1] if len(forms) > 1 else forms[0]
