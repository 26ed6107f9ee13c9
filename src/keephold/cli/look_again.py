"""Use an ignored configuration as soon as the user trusts it: looked for when a client begins a session (K7).

`keephold mcp` cannot ask, because a client has its input and output. It starts as if there were no file, and says so in
every session until the file is trusted.
"""

import logging

from keephold.cli.parameters import config_unasked
from keephold.errors import KeepholdError
from keephold.runtime import Runtime

_log = logging.getLogger("keephold.trust")


class LookAgain:
    """Call it when a session begins: it returns why the file is ignored, empty if none is."""

    def __init__(self, runtime: Runtime, ignored: str) -> None:
        self._runtime = runtime
        self._ignored = ignored

    async def __call__(self) -> str:
        if self._ignored:
            try:
                config, self._ignored = config_unasked(None)
                if not self._ignored:
                    left = self._runtime.reload(config)
                    for server in config.mcp_servers():
                        await self._runtime.add_server(server)
                    needed = [table for table in left if table != "mcp" or config.mcp.model_fields_set - {"servers"}]
                    _log.warning("the configuration is trusted now%s", _restart(needed))
            except KeepholdError as error:  # the file has mistakes
                self._ignored = error.message
        return self._ignored


def _restart(tables: list[str]) -> str:
    return f"; a restart is needed for {', '.join(tables)}" if tables else ""
