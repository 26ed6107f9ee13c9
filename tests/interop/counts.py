"""Prints how much of the conformance suite was passed, at the end of a run of the tests.

A worker's own output is not shown, so each test notes what it has seen as a property of its report.
"""

from collections import defaultdict
from collections.abc import Callable

import pytest

Record = Callable[[str, object], None]
"""pytest's fixture `record_property`."""
_PROPERTY = "conformance"


def note(record: Record, group: str, scenarios: int, checks: int) -> None:
    """These many scenarios and checks of a group were passed."""
    record(_PROPERTY, (group, scenarios, checks))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each group."""
    totals: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == _PROPERTY:
                group, scenarios, checks = value
                totals[group] = totals[group][0] + scenarios, totals[group][1] + checks
    for group, (scenarios, checks) in sorted(totals.items()):
        terminalreporter.write_line(f"MCP conformance, {group}: {checks} checks of {scenarios} scenarios passed")
