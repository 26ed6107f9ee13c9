"""A keeper stays small: it lives as long as its processes, and there is one for each store, user and host."""

import subprocess
import sys

import pytest


@pytest.mark.cold
def test_R7_a_keeper_imports_neither_stores_nor_handles() -> None:
    unwanted = ("keephold.store", "keephold.handles", "keephold.config")
    code = f"import sys, keephold.tools.keeper.server\nassert not [m for m in sys.modules if m.startswith({unwanted})]"
    subprocess.run([sys.executable, "-c", code], check=True)
