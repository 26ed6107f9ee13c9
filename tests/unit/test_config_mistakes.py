"""Mistakes that leave a file well-formed: what a newcomer writes, and what is then said (F, L4)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.config_files import load

from keephold.config.commands import SEEN
from keephold.errors import ConfigError
from keephold.schema.canonical import check_parameters
from keephold.tools.base import Invocation
from keephold.tools.function import tool
from keephold.tools.template import values_of
from keephold.tools.toolbox import Toolbox

pytestmark = pytest.mark.usefixtures("empty_directory")

PATH = "parameters.path.type = 'string'\n"


def problems(text: str) -> list[str]:
    """What is wrong with the file, if anything."""
    try:
        load(text)
    except ConfigError as error:
        return list(error.problems)
    return []


def local(command: str, more: str = "") -> list[str]:
    """The problems of a tool with this command, each from the key on; the command is on line 3."""
    found = problems(f"[conversation.tools.t]\nsource = 'local'\ncommand = {command}\n{more}")
    return [problem.partition("conversation.tools.t.")[2] for problem in found]


UNKNOWN = "templates see `tool` and `context`; did you mean"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("['ls', '{{ path }}']", f"command.1: `path` is unknown: {UNKNOWN} `{{{{ tool.arguments.path }}}}`?"),
        ("'ls {{ pth }}'", f"command: `pth` is unknown: {UNKNOWN} `{{{{ tool.arguments.path }}}}`?"),
        ("'ls {{ root }}'", f"command: `root` is unknown: {UNKNOWN} `{{{{ context.root }}}}`?"),
        (
            "'ls {{ zork }}'",
            "command: `zork` is unknown: templates see `tool` and `context`; "
            "a parameter is `{{ tool.arguments.<name> }}`",
        ),
        (
            "{ program = 'ls', args = ['{{ tool.arguments.typo }}'] }",
            "command.args.0: `tool.arguments.typo`: `t` has no such parameter; known: `path`",
        ),
        (
            "{ program = 'ls', args = [\"{{ tool['arguments']['typo'] }}\"], shell = true }",
            "command: `tool.arguments.typo`: `t` has no such parameter; known: `path`",
        ),
        (
            "['ls', '{% if tool.arguments.paht %}x{% endif %}']",
            "command.1: `tool.arguments.paht`: `t` has no such parameter; known: `path`; did you mean `path`?",
        ),
        (
            "['ls', '{{ tool.argument.path }}']",
            "command.1: `tool.argument` is unknown; known: `name`, `arguments`, `answers`, `options`; "
            "did you mean `arguments`?",
        ),
    ],
)
def test_F1_a_name_no_call_will_have_is_a_problem(command: str, expected: str) -> None:
    assert local(command, PATH) == [expected]


def test_F1_a_name_in_resources_is_looked_at_too() -> None:
    assert local("['true']", "resources = ['a', 'file:{{ tool.arguments.path }}']") == [
        "resources.1: `tool.arguments.path`: `t` has no such parameter; add [conversation.tools.t.parameters.path]"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{{ tool.arguments.path }}{{ tool.name }}{{ context.call_id }}{{ tool.options.level | default(1) }}",
        "{% for path in tool.arguments.path %}{{ path }}{{ loop.index }}{% endfor %}",
        "{% set tool = {'x': 1} %}{{ tool.x }}",
        "{{ tool.arguments[tool.options.which] }}{{ tool.answers.sure }}{{ range(3) | list }}",
        "{{ tool.arguments.path.upper() }}",
    ],
)
def test_F1_what_may_be_right_is_let_be(text: str) -> None:
    assert local(f'["true", "{text}"]', PATH) == []


def test_F1_a_default_may_be_meant_for_other_tools_parameters() -> None:
    defaults = "[conversation.tools.'*']\nresources = ['{{ tool.arguments.path | default(1) }}{{ oops }}']\n"
    (found,) = problems(defaults + "[conversation.tools.t]\nsource = 'local'\ncommand = 'true'\n")
    assert found.startswith('keephold.toml:2: conversation.tools."*".resources.0: `oops` is unknown')


def test_F1_a_misspelt_table_of_parameters_is_named_alone() -> None:
    (found,) = local("'ls {{ tool.arguments.path }}'", "paramters.path.type = 'string'")
    assert found == "paramters: unknown key; did you mean `parameters`?"


def test_F1_the_names_templates_see_are_those_of_a_call() -> None:
    @tool
    def nothing() -> None: ...

    call = Invocation(tool=nothing, arguments={}, uid="", call_id="", conversation="", turn="", stateful=False)
    assert {name: tuple(table) for name, table in values_of(call).items()} == SEEN


@pytest.mark.parametrize("word", ["|", "||", "&&", ";", ">", "<", ">>", "2>&1", "&"])
def test_F2_a_word_only_a_shell_would_read_is_a_problem_without_one(word: str) -> None:
    reason = f"`{word}` would be an argument of the program, for no shell reads it; for a script write "
    for command, key in ((f"'ls {word} x'", ""), (f"['ls', '{word}']", ".1"), ("", ".args.0")):
        (found,) = local(command or f"{{ program = 'ls', args = ['{word}'] }}")
        assert found.startswith(f'command{key}: {reason}`command = {{ program = "…", shell = true }}`')


@pytest.mark.parametrize(
    "command",
    [
        "{ program = 'ls | wc -l', args = ['>', 'x'], shell = true }",
        "\"grep '|' x\"",
        "'grep \\| x'",
        "\"grep --include='a | b' x\"",
        "'ls {{ tool.name | upper }}'",
        "['grep', \"{{ '|' }}\"]",
        "['sh', '-c', 'ls | wc']",
        "['find', '.', '-exec', 'ls', '{}', ';']",
    ],
)
def test_F2_what_a_program_is_meant_to_get_is_let_be(command: str) -> None:
    assert local(command) == []


def test_F_a_whole_command_in_the_place_of_its_program_is_a_problem() -> None:
    assert local("['ls -l']") == [
        'command: there is no program "ls -l"; one word an element, or write the command as a string'
    ]
    assert local("{ program = 'ls -l' }") == [
        'command: there is no program "ls -l"; put its arguments in `args`, or add shell = true'
    ]
    assert local("['no-such-program']") == [], "it may be there when it is called; `keephold check` says so"
    Path("a b").write_text("#!/bin/sh\n")
    Path("a b").chmod(0o755)
    assert local("['./a b']") == []


@pytest.mark.parametrize("name", ["a b", "a.b", "", "x" * 65, "é"])
def test_G3_a_name_that_providers_refuse_is_a_problem(name: str) -> None:
    (found,) = problems(f'[conversation.tools."{name}"]\nsource = "local"\ncommand = "true"\n')
    assert found.startswith("keephold.toml:1: conversation.tools.")
    assert "a tool's name has 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`" in found

    @tool
    def nothing() -> None: ...

    with pytest.raises(ConfigError, match="a tool's name has 1 to 64 characters"):
        Toolbox([replace(nothing, name=name)])


def test_G3_a_name_is_looked_at_whatever_else_is_wrong() -> None:
    found = problems('[conversation.tools."a b"]\nsource = "local"\ncommand = "true"\nzork = 1\n')
    assert [line.split(": ")[0] for line in found] == ["keephold.toml:1", "keephold.toml:4"]
    assert problems(f'[conversation.tools.{"x" * 64}]\nsource = "local"\ncommand = "true"\n') == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("stateful = true", "stateful: unknown key; belongs in [conversation.tools.t.spawn]"),
        ("settle_ms = 3", "settle_ms: unknown key; belongs in [conversation.tools.t.spawn]"),
        ("on_turn_end = 'keep'", "on_turn_end: unknown key; belongs in [conversation.tools.t.spawn.lifecycle]"),
        ("on_content = true", "on_content: unknown key; belongs in [conversation.tools.t.spawn.notifications]"),
        ("spawn.on_turn_end = 'keep'", "spawn.on_turn_end: unknown key; belongs in [conversation.tools.t.spawn.life"),
        ("spawn.run = 'ask'", "spawn.run: unknown key; belongs in [conversation.tools.t]"),
        ("max_lines = 3", "max_lines: unknown key; belongs in [conversation.tools.t.output]"),
        ("max_attempts = 3", "max_attempts: unknown key; belongs in [conversation.tools.t.retry]"),
        ("exclusive = true", "exclusive: unknown key; belongs in [conversation.tools.t.questions.<name>]"),
        ("batch_calls = 3", "batch_calls: unknown key; belongs in [limits]"),
        ("shell = true", "shell: unknown key; belongs in `command = { program, args, shell }`"),
        ("args = []", "args: unknown key; belongs in `command = { program, args, shell }`"),
        ("lifecycle.x = 1", "lifecycle: unknown key; did you mean [conversation.tools.t.spawn.lifecycle]?"),
        ("statefull = true", "statefull: unknown key; belongs in [conversation.tools.t.spawn] as `stateful`"),
    ],
)
def test_L4_a_key_of_another_table_is_sent_there(line: str, expected: str) -> None:
    (found,) = local("['true']", line)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tools.a]\nsource = 'local'", "tools: unknown key; did you mean [conversation.tools.a]?"),
        ("[tool.a]\nsource = 'local'", "tool: unknown key; did you mean [conversation.tools.a]?"),
        ("[conversation.limits]", "conversation.limits: unknown key; did you mean [limits]?"),
        ("detached = 'deny'", "detached: unknown key; belongs in [conversation]"),
    ],
)
def test_L4_a_table_in_the_wrong_place_is_sent_to_the_right_one(text: str, expected: str) -> None:
    assert problems(text) == [f"keephold.toml:1: {expected}"]


def test_L4_a_misplaced_default_is_named_once() -> None:
    tools = "".join(f"[conversation.tools.{name}]\nsource = 'local'\ncommand = 'true'\n" for name in "ab")
    assert problems('[conversation.tools."*"]\nstdin = true\n' + tools) == [
        'keephold.toml:2: conversation.tools."*".stdin: unknown key; belongs in [conversation.tools."*".spawn]'
    ]


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ("str", "string"),
        ("int", "integer"),
        ("float", "number"),
        ("list", "array"),
        ("dict", "object"),
        ("Boolean", "boolean"),
        ("strnig", "string"),
        ("None", "null"),
    ],
)
def test_L4_a_type_json_schema_does_not_have_lists_those_it_has_nearest_first(given: str, first: str) -> None:
    (found,) = local("['true']", f"parameters.p = {{ type = '{given}' }}")
    assert found.startswith(f'parameters.p.type: must be one of "{first}", ')
    assert found.endswith(f', not "{given}"')
    assert all(f'"{each}"' in found for each in ("string", "integer", "number", "boolean", "array", "object", "null"))


def test_L4_a_type_is_looked_at_wherever_a_schema_has_one() -> None:
    found = local("['true']", "parameters.p = { type = ['int', 'null'], items = { type = 'str' } }")
    assert [line.split(": ")[0] for line in found] == ["parameters.p.type", "parameters.p.items.type"]
    fine = "{ type = 'object', properties.type.type = 'string', default = { type = 'x' }, x-ui = { type = 'slider' } }"
    assert local("['true']", f"parameters.p = {fine}") == []


def test_C1_a_wrong_type_in_python_is_named_the_same_way() -> None:
    own: dict[str, Any] = {"type": "object", "properties": {"p": {"type": "str"}, "q": {"type": "int"}}}
    with pytest.raises(ConfigError) as caught:
        check_parameters("t", own, ())
    first, second = caught.value.problems
    assert first.startswith('tool `t`: at properties/p/type: must be one of "string", "integer"')
    assert second.startswith('tool `t`: at properties/q/type: must be one of "integer", "string"')


def test_L4_the_sources_offered_are_those_that_are_taken() -> None:
    (found,) = problems("[conversation.tools.t]\nsource = 'shell'\n")
    assert found.endswith('source: must be one of "local", "terminal", "python", "mcp", "builtin", not "shell"')


@pytest.mark.parametrize(
    ("pattern", "reason"), [("(", "missing ): ("), ("(?=x)", "invalid perl operator: (?="), ("x{2000}", "repetition")]
)
def test_A9_a_pattern_that_is_none_is_found_when_the_file_is_read(pattern: str, reason: str) -> None:
    (found,) = problems(f'[conversation.tools.t]\nsource = "local"\ncommand = "true"\nspawn.ready = "{pattern}"\n')
    assert found.startswith("keephold.toml:4: conversation.tools.t.spawn.ready: must be a regular expression (RE2")
    assert reason in found
    with pytest.raises(ConfigError, match="tool `dev`: ready is not a pattern"):
        tool(name="dev", ready=pattern)(lambda: None)
