"""Prints how much of the conformance suite was passed, at the end of a run of the tests.

Each test notes its line as a property of its report, because a worker's own output is not shown.
"""

import pytest

PROPERTY = "conformance"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed")
    for line in sorted(str(value) for each in reports for name, value in each.user_properties if name == PROPERTY):
        terminalreporter.write_line(f"MCP conformance, {line}")
