"""What holds for the project as a whole: files that fit in a reading, one list of codes, nothing of a machine."""

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import keephold
from keephold.errors import CODES

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def tracked() -> list[Path]:
    """What git has, and what it would take: a file is checked before it is committed."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in run.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_longer_than_800_lines() -> None:
    folders = ("src/", "tests/", "bench/", "examples/")
    code = [path for path in tracked() if path.suffix == ".py" and relative(path).startswith(folders)]
    assert code
    lengths = {relative(path): len(path.read_text().splitlines()) for path in code}
    assert {name: length for name, length in lengths.items() if length > 800} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [relative(path) for path in SOURCES if not re.match(r'(#.*\n|\s)*r?"""\s*\S', path.read_text())]
    assert silent == []


def codes_used() -> dict[str, set[str]]:
    """Code → files: every string given as `code=…`, as a class's `code`, or as the second argument of `Failure(…)`."""
    used: dict[str, set[str]] = {}
    for path in SOURCES:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "code" in text or "Failure" in text else ():
            for value in code_values(node):
                used.setdefault(value, set()).add(relative(path))
    return used


def code_values(node: ast.AST) -> list[str]:
    given: list[ast.expr | None] = []
    match node:
        case ast.Call():
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if len(node.args) > 1 and ast.unparse(node.func) in ("Failure", "state.Failure"):
                given.append(node.args[1])
        case ast.ClassDef():
            assigned = [statement for statement in node.body if isinstance(statement, ast.Assign | ast.AnnAssign)]
            given = [statement.value for statement in assigned if "code" in ast.unparse(statement).split("=")[0]]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            names = [argument.arg for argument in node.args.kwonlyargs]
            given = [value for name, value in zip(names, node.args.kw_defaults, strict=True) if name == "code"]
    return [found for value in given for found in strings(value)]


def strings(value: ast.expr | None) -> list[str]:
    """A string, or both of `"a" if … else "b"`."""
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp():
            return strings(value.body) + strings(value.orelse)
    return []


def test_the_codes_listed_are_those_used() -> None:
    used = codes_used()
    assert {code: files for code, files in used.items() if code not in CODES} == {}
    assert sorted(set(CODES) - set(used)) == []


MACHINE = re.compile(
    r"(?:^|[^\w.~$})/-])/(?:home|root|srv|mnt|work|Users|opt)/\w"  # somebody's directory
    r"|(?:index-url|find-links)\s*[=\s]\s*\S*[:/]"  # where packages came from
    r"|\b(?:pypi|pythonhosted)[.]org|\bregistry[.]npmjs|\bcrates[.]io"
)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("see /" + "home/me/keephold", True),
        (f"'/{'work'}/main/src'", True),
        ("--index-url https://example.org/simple", True),
        ("--extra-index-url file:///x", True),
        (f"https://files.{'pythonhosted'}.org/packages/x.whl", True),
        ("~/work/x and $(ROOT)/work/x and a/work/b", False),
        ("--no-emit-index-url", False),
    ],
)
def test_the_search_for_machine_paths_finds_them(line: str, named: bool) -> None:
    assert bool(MACHINE.search(line)) is named


def test_no_file_names_a_registry_or_a_path_of_a_machine() -> None:
    found = []
    for path in tracked():
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if MACHINE.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:120]}")
    assert found == []


LAYERS = (
    "content errors extras forking ids limits listeners platforms private_file text worker worker_process",
    "handles.form", "handles.question", "handles.state", "store", "handles", "tools.base", "durable", "schema",
    "tools", "engines", "turn", "config tracing", "upkeep", "runtime", "agent", "control",
    "acp mcp", "adapters serve testing", "cli",
    "assembly outcomes policies prompts __init__ __main__",
)  # fmt: skip
"""From the bottom up. Packages of one layer do not import each other, apart from those of the first layer."""

EXCEPTIONS = {
    "runtime → assembly": "the runtime loads models and sub-agents when one of them is first used",
}


def _layer(module: str) -> tuple[int, str]:
    """Find the layer of a module and the name by which the layer lists it."""
    name = module.removeprefix("keephold.")
    while name:
        for level, names in enumerate(LAYERS):
            if name in names.split():
                return level, name
        name = name.rpartition(".")[0]
    raise AssertionError(f"{module} is in no layer: add it to LAYERS")


def _imports(path: Path) -> Iterator[str]:
    """Yield each module of keephold that a module imports, in its functions too; not what only type checkers see."""
    tree = ast.parse(path.read_text())
    hidden = {
        inner
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(package)) if node not in hidden:
                yield from (f"{package}.{each.name}" for each in node.names if package.startswith("keephold"))
            case ast.Import():
                yield from (each.name for each in node.names if each.name.startswith("keephold."))
            case ast.Call(args=[ast.Constant(value=str(module))]) if module.startswith("keephold."):
                yield from [module] if "import_module" in ast.unparse(node.func) else []


def test_a_package_imports_only_packages_below_it() -> None:
    source = ROOT / "src" / "keephold"
    upward = set()
    for path in source.rglob("*.py"):
        level, name = _layer(".".join(path.relative_to(source).with_suffix("").parts))
        for module in _imports(path):
            above, imported = _layer(module)
            if imported != name and (above > level or above == level > 0):
                upward.add(f"{name} → {imported}")
    assert upward == set(EXCEPTIONS)


def test_the_layers_of_the_map_are_those_that_are_checked() -> None:
    """`docs/design.md` lists each package, from the top down, in the order of `LAYERS`."""
    table = (ROOT / "docs" / "design.md").read_text().split("## Layers")[1].split("\n## ")[0]
    rows = [re.findall(r"`(\w+)(?:/|\.py)`", row.split("|")[2]) for row in table.splitlines() if row.startswith("| ")]
    levels = [[_layer(name)[0] for name in row] for row in rows if row]
    assert all(min(upper) > max(lower) for upper, lower in pairwise(levels)), levels
    packages = {path.parent.name for path in (ROOT / "src" / "keephold").glob("*/__init__.py")}
    assert packages - {name for row in rows for name in row} == set()


def _public_classes() -> dict[str, str]:
    """Each class that `keephold` or one of its public modules exports, with the module that defines it."""
    modules = [keephold, *(importlib.import_module(f"keephold.{name}") for name in keephold._MODULES)]
    found = [getattr(module, name) for module in modules for name in getattr(module, "__all__", ())]
    return {each.__name__: each.__module__ for each in found if isinstance(each, type)}


def test_the_name_of_a_public_class_has_one_meaning() -> None:
    """No other module defines a class or an alias of that name."""
    public = _public_classes()
    again = []
    for path in SOURCES:
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for name in re.findall(r"^(?:class )?(\w+)(?:[(:]| = )", path.read_text(), re.MULTILINE):
            again += [f"{module}.{name}"] if public.get(name, module) != module else []
    assert again == []


def test_no_docstring_of_a_public_class_names_a_rule() -> None:
    rule = re.compile(r"\b[A-Z][0-9]{1,2}\b")
    found = []
    for name, module in _public_classes().items():
        public = getattr(importlib.import_module(module), name)
        members = [each for key, each in vars(public).items() if not key.startswith("_") and callable(each)]
        found += [f"{name}: {doc}" for each in (public, *members) if rule.search(doc := each.__doc__ or "")]
    assert found == []


def test_B8_built_in_wait_and_remote_tools_reach_into_nothing_private() -> None:
    folders = [ROOT / "src" / "keephold" / "tools" / name for name in ("builtin", "waiting", "workflow", "remote")]
    private = re.compile(r"(call|sink|handles?|host|registry|durability|waits|journal|invocation)\._")
    assert [
        relative(path) for folder in folders for path in folder.glob("*.py") if private.search(path.read_text())
    ] == []


def test_the_decided_state_is_assigned_in_one_place() -> None:
    """Two racing ends are checked against one value, so that the first wins (S2)."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in SOURCES
        if ".decided" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "decided" and isinstance(node.ctx, ast.Store)
    ]
    assert len(found) == 1 and found[0].startswith("handle.py:"), found
