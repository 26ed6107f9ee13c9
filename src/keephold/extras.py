"""Packages that are not part of a plain `pip install keephold`: whether they are here, and the error that names the
extra which installs them.

Modules of the core import such packages in functions, behind `need`. `keephold.mcp` and `keephold.serve` call it
themselves, so that an import of them says the same.
"""

from importlib.util import find_spec

from keephold.errors import MissingExtra

MCP = ("mcp", "httpx2", "starlette")
"""For `keephold[mcp]`: an MCP server and tools of MCP servers."""
CEL = "cel_expr_python"
"""For workflows."""
SERVE = (*MCP, "uvicorn", "prometheus_client", CEL)
"""For `keephold[serve]`."""


def installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return find_spec(package) is not None


def need(extra: str, what: str, *packages: str) -> None:
    """Raise `MissingExtra` unless the packages that `what` needs are installed; `extra` installs them."""
    for package in packages:
        if not installed(package):
            name = package.replace("_", "-")
            raise MissingExtra(
                f"{what} needs the package {name}, which is not installed: pip install 'keephold[{extra}]'"
            )
