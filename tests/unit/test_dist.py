"""What `make dist` builds: the same bytes each time, everything a user needs and nothing else."""

import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "requirements"


def build(directory: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist of this tree."""
    env = {"SOURCE_DATE_EPOCH": "1700000000", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)
    return next(directory.glob("*.whl")), next(directory.glob("*.tar.gz"))


def pinned(name: str) -> dict[str, str]:
    """Return the versions of a lock file."""
    return dict(re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", (LOCKS / name).read_text(), re.MULTILINE))


@pytest.mark.slow
def test_L1_a_build_is_reproducible_and_complete(tmp_path: Path) -> None:
    wheel, sdist = build(tmp_path / "one")
    again = build(tmp_path / "two")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, sdist)]
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in again] == digests

    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        metadata = Parser().parsestr(file.read(next(n for n in names if n.endswith("/METADATA"))).decode())
    top = {name.partition("/")[0] for name in names}
    assert {each for each in top if not each.endswith(".dist-info")} == {"keephold"}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert {name for name in sources if "__pycache__" not in name} <= set(names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Version"] == project["version"] and metadata["Requires-Python"] == ">=3.11"
    assert "Programming Language :: Python :: 3.14" in metadata.get_all("Classifier", [])
    assert {"all", "mcp", "serve"} <= set(metadata.get_all("Provides-Extra", []))

    with tarfile.open(sdist) as archive:
        held = {name.split("/")[1] for name in archive.getnames()}
    assert held == {"src", "requirements", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO",
                    ".gitignore"}  # fmt: skip


@pytest.mark.parametrize("name", ["run.txt", "image.txt", "constraints.txt"])
def test_a_lock_for_users_has_the_versions_that_are_tested(name: str) -> None:
    tested, given = pinned("dev.txt"), pinned(name)
    assert given
    # Markers of other platforms can bring packages that are not in the developers' set.
    assert {each: version for each, version in given.items() if tested.get(each, version) != version} == {}
    assert len(set(given) - set(tested)) <= 2, set(given) - set(tested)
