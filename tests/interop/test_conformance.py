"""The official conformance suite against the fixture server (M1, M2): every scenario that applies, and no failures.

How many scenarios and checks there are is written down here, so that none can fall away unseen.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.interop.counts import Record, note
from tests.interop.foreign import CONFORMANCE, node, told

TASKS = {
    "tasks-lifecycle": 9,
    "tasks-capability-negotiation": 5,
    "tasks-wire-fields": 4,
    "tasks-request-state-removal": 3,
    "tasks-mrtr-input": 4,
    "tasks-request-headers": 5,
    "tasks-dispatch-and-envelope": 9,
    "tasks-status-notifications": 0,  # the suite itself skips it: see its source
    "tasks-required-task-error": 3,
    "tasks-mrtr-composition": 2,
}
"""Scenario → how many of its checks pass."""


def _checks(place: Path) -> dict[str, list[dict[str, Any]]]:
    """Scenario → its checks, from the files that the suite wrote."""
    found = {}
    for path in place.glob("*/checks.json"):
        scenario = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT.+", path.parent.name)
        assert scenario is not None
        found[scenario[1]] = json.loads(path.read_text())
    return found


def _passed(checks: dict[str, list[dict[str, Any]]]) -> int:
    """How many checks passed; the test fails if one did not, whether it counts as failure or as warning."""
    bad = [
        f"{scenario}: {check['status']} {check['id']}: {check.get('errorMessage')}"
        for scenario, each in checks.items()
        for check in each
        if check["status"] in ("FAILURE", "WARNING")
    ]
    if bad:
        pytest.fail("\n".join(bad), pytrace=False)
    return sum(check["status"] == "SUCCESS" for each in checks.values() for check in each)


def _listed() -> dict[str, str]:
    """Every scenario for servers → the versions it applies to."""
    servers = told(node(CONFORMANCE, "list")).partition("Client scenarios")[0]
    return dict(re.findall(r"- (\S+) \[(.*)\]", servers))


@pytest.mark.parametrize(("version", "scenarios", "least"), [("2025-11-25", 33, 84), ("2026-07-28", 40, 152)])
def test_M1_every_scenario_of_a_version_passes(
    url: str, tmp_path: Path, record_property: Record, version: str, scenarios: int, least: int
) -> None:
    run = node(CONFORMANCE, "server", "--url", url, "--suite", "all", "--spec-version", version, "-o", str(tmp_path))
    checks = _checks(tmp_path)
    passed = _passed(checks)
    told(run)
    assert checks.keys() == {name for name, versions in _listed().items() if version in versions.split(",")}
    assert len(checks) == scenarios
    assert passed >= least
    note(record_property, version, len(checks), passed)


def test_M2_no_scenario_of_tasks_is_left_out() -> None:
    assert [name for name in _listed() if name.startswith("tasks-")] == list(TASKS)


@pytest.mark.parametrize("scenario", TASKS)
def test_M2_tasks(url: str, tmp_path: Path, record_property: Record, scenario: str) -> None:
    run = node(CONFORMANCE, "server", "--url", url, "--scenario", scenario, "-o", str(tmp_path))
    passed = _passed(_checks(tmp_path))
    told(run)
    assert passed >= TASKS[scenario]
    note(record_property, "tasks", 1, passed)
