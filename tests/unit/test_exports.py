"""The public names: the table, the list and what type checkers see are one set; every name is there and explained."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import keephold

PUBLIC = sorted(keephold.__all__)


def names_for_type_checkers() -> dict[str, str]:
    """Name → module of the imports under `if TYPE_CHECKING:`."""
    tree = ast.parse(Path(keephold.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body]
    assert all(isinstance(node, ast.ImportFrom) for node in imports)
    modules = [node for node in imports if isinstance(node, ast.ImportFrom) and node.module == "keephold"]
    assert [alias.asname for node in modules for alias in node.names] == list(keephold._MODULES)
    return {
        alias.asname or alias.name: node.module or ""
        for node in imports
        if isinstance(node, ast.ImportFrom) and node.module != "keephold"
        for alias in node.names
    }


def test_table_list_and_type_checkers_agree() -> None:
    assert names_for_type_checkers() == keephold._HOMES
    assert set(keephold._HOMES) == set(keephold.__all__)
    assert len(set(keephold.__all__)) == len(keephold.__all__)


def test_the_list_is_sorted() -> None:
    assert keephold.__all__ == sorted(keephold.__all__)
    assert list(keephold._HOMES) == sorted(keephold._HOMES)


def test_Y_about_twenty_names_are_at_the_top() -> None:
    spec = "Call Pending Question Runtime ToolCall ToolError tool"
    assert set(spec.split()) <= set(keephold.__all__)
    assert len(keephold.__all__) <= 22


@pytest.mark.parametrize("module", keephold._MODULES)
def test_Y_a_public_module_is_found_without_an_import_of_its_own(module: str) -> None:
    program = (
        f"import keephold; print(*(getattr(keephold.{module}, name).__doc__ for name in keephold.{module}.__all__))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "None" not in run.stdout.split()
    names = getattr(keephold, module).__all__
    assert names == sorted(names)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_can_be_imported_and_has_a_docstring(name: str) -> None:
    value = getattr(keephold, name)
    assert value is getattr(importlib.import_module(keephold._HOMES[name]), name)
    doc = inspect.getdoc(value)
    assert doc and doc.strip()
    # A dataclass or a struct without words of its own answers with its signature.
    assert not doc.startswith(f"{name}(")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_lives_where_the_table_says(name: str) -> None:
    assert getattr(keephold, name).__module__ == keephold._HOMES[name]


def test_no_public_name_is_hidden_by_a_module() -> None:
    """Importing `keephold.x` sets the attribute `x`: a public name spelled like a module would come and go."""
    modules = {module.name for module in pkgutil.iter_modules(keephold.__path__)}
    assert not modules & set(keephold.__all__)


def test_dir_lists_public_names() -> None:
    assert set(PUBLIC) <= set(dir(keephold))


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known() -> None:
    mistyped = "Handel"
    with pytest.raises(AttributeError, match=r"no public name `Handel`.*ToolError"):
        getattr(keephold, mistyped)


@pytest.mark.cold
def test_importing_keephold_imports_nothing_else_of_it() -> None:
    program = "import sys, keephold; print(*sorted(m for m in sys.modules if m.startswith('keephold.')))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
