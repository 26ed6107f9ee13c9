"""What holds for the project as a whole: files that fit in a reading, one list of codes, nothing of a machine."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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
        for node in ast.walk(ast.parse(path.read_text())):
            for value in code_values(node):
                used.setdefault(value, set()).add(relative(path))
    return used


def code_values(node: ast.AST) -> list[str]:
    given: list[ast.expr | None] = []
    match node:
        case ast.Call():
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if ast.unparse(node.func) in ("Failure", "state.Failure") and len(node.args) > 1:
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
    "characters content errors extras forking ids limits listeners platforms private_file text worker worker_process",
    "store handles", "tools.base", "durable", "schema", "tools", "engines", "turn",
    "config tracing upkeep runtime", "agent", "control", "testing cli",
)  # fmt: skip
"""From the bottom up. `tools.base` holds the types of the seam, which those around it share."""


def _layer(module: str) -> int:
    parts = module.removeprefix("keephold.")
    for level, names in enumerate(LAYERS):
        if any(parts == name or (parts.startswith(name + ".") and name != "tools") for name in names.split()):
            return level
    return LAYERS.index("tools") if parts.startswith("tools") else len(LAYERS)


def _imports(path: Path, *, lazy: bool) -> Iterator[str]:
    """Yield what a module imports at once or, with `lazy`, in its functions, too; not what only type checkers see."""
    tree = ast.parse(path.read_text())
    hidden = {
        inner
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keephold.") and node not in hidden:
            yield node.module or ""


def test_nothing_imports_what_is_above_it() -> None:
    source = ROOT / "src" / "keephold"
    wrong = []
    for path in source.rglob("*.py"):
        module = ".".join(path.relative_to(source.parent).with_suffix("").parts).removesuffix(".__init__")
        wrong += [
            f"{module} → {each}"
            for each in _imports(path, lazy=_layer(module) < len(LAYERS) - 1)
            if _layer(each) > _layer(module)
        ]
    assert wrong == []


def test_B8_built_in_tools_use_the_public_interface_of_a_call() -> None:
    folders = [ROOT / "src" / "keephold" / "tools" / name for name in ("builtin", "waiting", "workflow")]
    private = re.compile(r"\bcall\._")
    assert [
        relative(path) for folder in folders for path in folder.glob("*.py") if private.search(path.read_text())
    ] == []


def test_the_decided_state_is_assigned_in_one_place() -> None:
    """Two racing ends are checked against one value, so that the first wins (S2)."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / "src" / "keephold").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "decided" and isinstance(node.ctx, ast.Store)
    ]
    assert len(found) == 1 and found[0].startswith("handle.py:"), found
