"""Break the code on purpose, one rule at a time, and check that the tests named for it fail.

    python -m tests.mutations               all of them; exit code 1 if one is not found
    python -m tests.mutations lane gate     these
    python -m tests.mutations --list        write tests/mutations.md again

Each mutation is made in a copy of `src`, so nothing has to be restored. A mutation whose text is not in its file
exactly once is an error: whoever changes that code chooses another mutation of the same rule.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".md")
HEAD = """# Mutations

Mistakes that the tests must find. `python -m tests.mutations` makes each of them in a copy of `src`, runs the tests
named for it, and fails if they pass. The table is written by `python -m tests.mutations --list`.

| mutation | mistake | file | found by |
|---|---|---|---|
"""


class Mutation(NamedTuple):
    """One mistake: a text and its replacement."""

    name: str
    mistake: str
    file: str
    before: str
    after: str
    tests: str
    """Files or tests, and `-k` with an expression, as pytest takes them."""


MUTATIONS = [
    Mutation(
        "state", "a call that never ran has begun", "handles/state.py",
        "started = None if isinstance(state, PendingState) else",
        "started = state.created if isinstance(state, PendingState) else",
        "tests/unit/test_state.py tests/turn",
    ),
    Mutation(
        "deliberate", "an abort is shown as a failure of the tool", "handles/state.py",
        'and self.ended_by != "self" and outcome.code in ("aborted", "cancelled")', "and False",
        "tests/turn/test_cancel.py tests/turn/test_views.py tests/turn/test_result_open.py tests/turn/test_turn_end.py",
    ),
    Mutation(
        "wait", "a wait for any one of several waits for all", "handles/waits.py",
        "if group.need > 0 and group.left > 0:", "if group.left > 0:",
        "tests/unit/test_waits.py tests/turn/test_await.py",
    ),
    Mutation(
        "blocked", "a wait goes on although every handle waits for the model", "handles/waits.py",
        "if self._keeps_going(line[0]):", "if line[0] in self._of:",
        "tests/turn/test_blocked.py tests/unit/test_waits.py",
    ),
    Mutation(
        "lane", "a serial call starts beside the parallel ones", "turn/lanes.py",
        "elif self._serial and not self._parallel and", "elif self._serial and", "tests/turn/test_lanes.py",
    ),
    Mutation(
        "gate", "a ticket passes a full resource", "handles/gate.py",
        "                groups.append([ticket.handle for ticket in line.holders])", "                pass",
        "tests/turn/test_resources.py tests/turn/test_limits.py tests/turn/test_blocked.py",
    ),
    Mutation(
        "settle", "output during the quiet time does not begin it again", "turn/settle.py",
        "        if left > 0:\n            self._quiet", "        if False:\n            self._quiet",
        "tests/turn/test_patience.py tests/turn/test_talking.py tests/turn/test_functions.py",
    ),
    Mutation(
        "permission", "a call that needs permission runs where no user can be asked", "turn/permission.py",
        'if self.detached == "auto":\n            return Al', 'if self.detached != "":\n            return Al',
        "tests/turn/test_permission.py tests/turn/test_permission_open.py",
    ),
    Mutation(
        "denied", "a remembered no is taken for a yes", "turn/permission.py",
        "return _standing(known) if known.value else Ok(SKIPPED_REMEMBERED)", "return _standing(known)",
        "tests/turn/test_permission_people.py tests/turn/test_permission_open.py",
    ),
    Mutation(
        "self-approval", "the client of a principal approves the principal's calls", "mcp/calls.py",
        "conversation == self._conversation or name in self._client_prompts or is_hosted(name)", "True",
        "tests/attacks/test_self_approval.py",
    ),
    Mutation(
        "unpermitted", "a call that waited for permission runs after a crash", "turn/recovery.py",
        "if isinstance(record.state, PendingState) and record.retry_of is None:", "if False:",
        "tests/serve/test_requests_elsewhere.py",
    ),
    Mutation(
        "digest", "a decision counts for a request that has changed", "turn/prompts.py",
        "if digest is not None and digest != current:", "if False:", "tests/control/test_standing.py",
    ),
    Mutation(
        "revoke", "a revoked permission still holds", "turn/approvals.py",
        "        ended = known.pop(what, None)", "        ended = known.get(what)", "tests/control/test_standing.py",
    ),
    Mutation(
        "exclusive", "a model may answer a question that only a user may answer", "turn/questions.py",
        "if policy.exclusive or question.secret:  # Q4", "if question.secret:  # Q4",
        "tests/turn/test_questions.py tests/turn/test_questions_people.py",
    ),
    Mutation(
        "open-questions", "any number of questions may be open", "turn/questions.py",
        "if open_now >= self._limits.open_questions:", "if open_now < 0:", "tests/turn tests/unit -k open_questions",
    ),
    Mutation(
        "retry", "a call is tried again once too often", "tools/attempts.py",
        "self._failures + 1 >= self._handle", "self._failures >= self._handle",
        "tests/durable/test_retry.py tests/durable/test_restart.py",
    ),
    Mutation(
        "fence-memory", "a former owner writes to a call of the store in memory", "store/memory/operations.py",
        "if record is None or op.fence != record.fence or type(record.state) is Stopped:",
        "if record is None or type(record.state) is Stopped:", "tests/conformance/test_stores.py",
    ),
    Mutation(
        "fence-claim", "a claim leaves the fence as it was", "store/memory/operations.py",
        "record.fence += 1", "record.fence += 0", "tests/conformance/test_stores.py",
    ),
    Mutation(
        "journal", "a recorded step is replayed for another input", "durable/journal.py",
        "    if entry.digest != digest:", "    if False:",
        "tests/durable/test_effects.py tests/conformance/test_effects.py",
    ),
    Mutation(
        "journal-error", "a step that failed runs again at replay", "durable/journal.py",
        "        if entry is not None:\n            return _replayed",
        "        if entry is not None and entry.ok:\n            return _replayed",
        "tests/durable/test_effects.py tests/conformance/test_effects.py tests/durable/test_resume.py",
    ),
    Mutation(
        "key", "any signature makes a key genuine", "durable/keys.py",
        "return hmac.compare_digest(expected, presented.signature) and secret is not None",
        "return bool(expected) and secret is not None", "tests/durable/test_keys.py",
    ),
    Mutation(
        "critical", "a critical notification does not end a wait", "turn/notifications.py",
        'if any(each.level == "critical" for each in queued):', "if False:",
        "tests/turn/test_notification_carriers.py tests/turn/test_notifications.py tests/turn -k 'N or critical'",
    ),
    Mutation(
        "content", "notifications of new content pile up", "store/memory/notification_queue.py",
        "        if notice.kind == CONTENT and uid is not None:", "        if False:",
        "tests/conformance/test_stores.py tests/turn/test_notified_content.py",
    ),
    Mutation(
        "retention", "turns are kept for ever in memory", "store/memory/retention.py",
        "if row.ended_at is not None and row.ended_at < before]", "if False]", "tests/conformance/test_stores.py",
    ),
    Mutation(
        "budget", "a part of a token is not counted", "turn/budget.py",
        "return -(-size // 4)", "return size // 4", "tests/unit/test_budget.py",
    ),
    Mutation(
        "dialect", "strict schemas leave optional properties out of `required`", "schema/dialects.py",
        '"required": list(properties), "additionalProperties": False}', '"additionalProperties": False}',
        "tests/unit/test_schema_dialects.py tests/unit/test_schema_refusals.py",
    ),
    Mutation(
        "config", "`stateful = false` beside actions is taken", "config/rules.py",
        "if spawn.stateful is False and spawn.actions is not None:", "if False:",
        "tests/unit/test_config.py tests/unit/test_config_mistakes.py tests/unit/test_config_policies.py",
    ),
    Mutation(
        "template", "an argument with a NUL is passed on", "tools/template.py",
        'if "\\0" in argument:', "if False:", "tests/unit/test_template.py tests/unit/test_command.py",
    ),
    Mutation(
        "quoting", "a value in a shell script is not quoted", "tools/shell.py",
        "\"${%d}\" if frame.quoted else '\"${%d}\"'", '"${%d}"', "tests/unit/test_template.py",
    ),
    Mutation(
        "withheld", "children inherit API keys", "tools/environment.py",
        "if name in named or not (name in _names or value in _values)", "if True", "tests/attacks/test_environment.py",
    ),
    Mutation(
        "concealed", "a tool reads the keys in /proc of its parent", "tools/guard.py",
        "conceal()  # before the first child can look", "pass", "tests/attacks/test_environment.py",
    ),
    Mutation(
        "offered", "a model calls a built-in that it is not offered", "tools/toolbox.py",
        'return tool.offered or tool.name in _ALWAYS or tool.source == "mcp"', "return True",
        "tests/attacks/test_offered.py",
    ),
    Mutation(
        "offered-steps", "a workflow step runs a tool that its agent is refused", "turn/single_calls.py",
        "tools = await parts.offers.of(self.conversation)", "tools = parts.toolbox", "tests/attacks/test_offered.py",
    ),
    Mutation(
        "rebinding", "a name is resolved again after its address was checked", "tools/workflow/pinned.py",
        "request.url.copy_with(host=address),", "request.url,", "tests/attacks/test_api_steps.py",
    ),
    Mutation(
        "tls-name", "a connection is made without the name that TLS verifies", "tools/workflow/pinned.py",
        'extensions["sni_hostname"] = host', "pass", "tests/attacks/test_api_steps.py",
    ),
    Mutation(
        "api-hosts", "a redirect leads to a host that nobody has allowed", "tools/workflow/http.py",
        'await self._check_host(request.url, given, f"{name}>{hop}")',
        'await self._check_host(request.url, given, f"{name}>{hop}") if hop == 0 else None',
        "tests/attacks/test_api_steps.py",
    ),
    Mutation(
        "exit-code", "a user's Ctrl-C has the exit code of success", "cli/__init__.py",
        "raise click.exceptions.Exit(128 + signal.SIGINT) from error", "raise click.exceptions.Exit(0) from error",
        "tests/unit/test_cli.py tests/e2e/test_interrupted.py",
    ),
    Mutation(
        "mcp-task", "a cancelled task is told as completed", "mcp/tasks.py",
        'return "cancelled" if state.deliberate else "completed"', 'return "completed"',
        "tests/mcp/test_push.py tests/mcp/test_two_servers.py",
    ),
    Mutation(
        "host", "the server answers by any name", "serve/door.py",
        "if not self._any_host and name not in self._hosts and not self._is_own(name):", "if False:",
        "tests/serve/test_door.py",
    ),
    Mutation(
        "cookie", "a page of another site acts with the owner's cookie", "serve/door.py",
        "if session is not None and (method in _SAFE or _same_page(headers)):", "if session is not None:",
        "tests/serve/test_door.py tests/serve/test_attacks_door.py",
    ),
    Mutation(
        "session", "every port of 127.0.0.1 gets the session's cookie", "serve/door.py",
        "if self._is_own(name) or self._is_public(name):",
        "if self._is_own(name) or self._is_public(name) or name in LOOPBACK:",
        "tests/serve/test_door.py tests/attacks/test_session.py",
    ),
    Mutation(
        "slow-body", "a body may take any time if a byte comes now and then", "serve/server.py",
        "self._wait(min(BODY_SECS, self._begun + whole - self.loop.time()))", "self._wait(BODY_SECS)",
        "tests/serve/test_slow_bodies.py",
    ),
    Mutation(
        "escaping", "a terminal's text is HTML on the page", "serve/dashboard/painting.py",
        "inner = html.escape(text) if text.isascii()", "inner = text if text.isascii()",
        "tests/serve/test_screens.py tests/serve/test_attacks_text.py tests/unit/terminal",
    ),
    Mutation(
        "terminal-key", "Alt changes the case of a key", "tools/terminal/keys.py",
        'return b"\\x1b" + rest.encode()  # unchanged', 'return b"\\x1b" + rest.lower().encode()  # unchanged',
        "tests/unit/terminal",
    ),
    Mutation(
        "workflow-catch", "the steps of `catch` do not see the error", "tools/workflow/steps.py",
        'frame.within("catch", error=tried.error)', 'frame.within("catch")', "tests/unit/workflow",
    ),
    Mutation(
        "workflow-count", "failed branches are counted as successful", "tools/workflow/steps.py",
        '{"successCount": len(ends) - failures,', '{"successCount": len(ends),', "tests/unit/workflow",
    ),
]  # fmt: skip


class NotApplicable(Exception):
    """The text of a mutation is not in the source exactly once."""


def mutated(mutation: Mutation, source: Path, *, anywhere: bool) -> None:
    """Make the mistake in a copy of the source."""
    files = sorted(source.rglob("*.py")) if anywhere else [source / "keephold" / mutation.file]
    found = [(path, text) for path in files if mutation.before in (text := path.read_text())]
    if len(found) != 1 or found[0][1].count(mutation.before) != 1:
        raise NotApplicable(f"{mutation.name}: `{mutation.before}` is not exactly once in {mutation.file}")
    path, text = found[0]
    path.write_text(text.replace(mutation.before, mutation.after))


def found(mutation: Mutation, root: Path = ROOT, *, anywhere: bool = False) -> bool:
    """Whether the tests named for a mutation fail. `anywhere`: its text may be in another file of that source."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "src"
        shutil.copytree(root / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        mutated(mutation, source, anywhere=anywhere)
        where, _, which = mutation.tests.partition(" -k ")
        chosen = ["-k", which.strip("'")] if which else []
        existing = [each for each in where.split() if (root / each).exists()]
        ran = subprocess.run(
            [root / ".venv/bin/pytest", "-x", "-n0", "-p", "no:randomly", *existing, *chosen],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(source), "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if ran.returncode not in (0, 1):
        raise NotApplicable(f"{mutation.name}: pytest ended with {ran.returncode}:\n{ran.stdout[-2000:]}")
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print(f"{mutation.name}: {failed[0][:150] if failed else 'NOT FOUND by ' + mutation.tests}", flush=True)
    return ran.returncode == 1


def table() -> str:
    """Return the list for readers."""
    rows = [f"| {m.name} | {m.mistake} | `{m.file}` | `{m.tests}` |" for m in MUTATIONS]
    return HEAD + "\n".join(rows) + "\n"


def main(arguments: list[str]) -> int:
    """Return 1 if a mutation is not found."""
    if arguments == ["--list"]:
        TABLE.write_text(table())
        return 0
    root = ROOT
    if arguments[:1] == ["--root"]:  # another checkout, with its own .venv and its own tests
        root, arguments = Path(arguments[1]), arguments[2:]
    missed = 0
    for mutation in (m for m in MUTATIONS if not arguments or m.name in arguments):
        try:
            missed += not found(mutation, root, anywhere=root != ROOT)
        except NotApplicable as error:
            print(error, file=sys.stderr, flush=True)
            missed += 1
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
