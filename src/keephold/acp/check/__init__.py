"""A conformance kit for ACP agents in any language: `keephold acp-check COMMAND…` (X5).

A *scene* starts the agent, plays a client and records every message. A *check* is a small function that examines a
recording, or an agent of its own, and passes, fails or is skipped with a reason.
"""

from keephold.acp.check.scenes import Settings
from keephold.acp.check.suite import CHECKS, Report, Result, run

__all__ = ["CHECKS", "Report", "Result", "Settings", "run"]
