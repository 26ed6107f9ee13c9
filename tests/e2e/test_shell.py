"""Arguments of a call are data, whatever they look like: echoed, never run (K3, F2)."""

import pytest
from tests.e2e.driver import Start

CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"
parameters.x = { type = "string", required = true }

[conversation.tools.argv]
command = { program = "sh", args = ["-c", "echo {{ tool.arguments.x }}"] }

[conversation.tools.script]
command = { program = "echo {{ tool.arguments.x }}", shell = true }

[conversation.tools.quoted]
command = { program = "echo", args = ["\\"{{ tool.arguments.x }}\\""], shell = true }

[conversation.tools.words]
command = "echo {{ tool.arguments.x }}"
"""

HOSTILE = [
    "; touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "a' ; touch pwned ; '",
    'a" ; touch pwned ; "',
    "a\n touch pwned",
    "&& touch pwned || touch pwned & touch pwned | touch pwned > pwned",
    "${IFS}$HOME $0 $@ $1",
    "*",
    "  two  spaces  ",
    "{{ 7 * 7 }}{% raw %}",
    "-- --help",
]


@pytest.mark.parametrize("tool", ["argv", "script", "quoted", "words"])
def test_K3_a_hostile_argument_is_echoed_and_not_run(start: Start, tool: str) -> None:
    turn = start(CONFIG)
    answers = turn.run(*((tool, {"x": x}) for x in HOSTILE))
    assert [answer.text for answer in answers] == [x + "\n" for x in HOSTILE]
    assert turn.finish() == []
    assert not (turn.directory / "pwned").exists()
