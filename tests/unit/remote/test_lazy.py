"""Nobody who uses no MCP server pays for `mcp`, which takes most of a second to import."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "program",
    [
        "import keephold; keephold.Runtime",
        "import keephold; keephold.Runtime(servers=[keephold.mcp_server('a', command=['x'])])",
        "from keephold.cli import main; main(['--help'], standalone_mode=False)",
    ],
)
@pytest.mark.cold
def test_mcp_is_not_imported(program: str) -> None:
    code = f"import sys\n{program}\nassert 'mcp' not in sys.modules and 'httpx2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
