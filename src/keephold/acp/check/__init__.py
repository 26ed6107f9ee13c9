"""A conformance kit for ACP agents in any language (X5): `keephold acp-check COMMAND…`.

A *scene* starts the agent, plays a client and records every message; a *check* is a small function that looks at what
was recorded, or at an agent of its own, and passes, fails or is skipped with a reason. Checks live in a file by topic.
"""

from keephold.acp.check.scenes import Settings
from keephold.acp.check.suite import CHECKS, Report, Result, run

__all__ = ["CHECKS", "Report", "Result", "Settings", "run"]
