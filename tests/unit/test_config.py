"""`keephold.toml`: what is read, what it becomes, and what is said when it is wrong (F, L4, P1, K5, K6)."""

from pathlib import Path

import pytest
from tests.unit.config_files import LOCAL, build, load, problem, problems

from keephold.config import Config, build_tools, configure_builtin, find_config, load_config
from keephold.errors import ConfigError
from keephold.limits import Limits
from keephold.tools.base import OutputPolicy, OutputView, QuestionPolicy, RetryPolicy, SpawnPolicy, Tool
from keephold.tools.guard import Guard

pytestmark = pytest.mark.usefixtures("empty_directory")

FROM_THE_SPEC = """
[conversation.tools.cargo_check]
source = "local"
command = ["cargo", "check", "-p", "{{ tool.arguments.package }}"]
description = "Type-check a package."
summary = "…"
examples = ["…"]
run = "unattended"
run_actions = { apply = "ask" }
result = "unattended"
timeout_secs = 600
cwd = "."
env = { RUST_BACKTRACE = "1" }
wire = false
scheduling = "parallel"
resources = ["crate:{{ tool.arguments.package }}"]
max_running = 4
retry = { policy = "safe", max_attempts = 3, base_delay_ms = 200, max_delay_ms = 5000 }
on_crash = "fail"
output = { limit = 16384, mode = "bytes", max_lines = 400, window = "tail", max_output = "100MiB" }

[conversation.tools.cargo_check.parameters.package]
type = "string"
required = true
description = "Package name."
enum = ["a", "b"]

[conversation.tools.cargo_check.questions.overwrite]
target = "assistant"
answer = true
exclusive = false

[conversation.tools.cargo_check.spawn]
stateful = true
actions = ["spawn", "fetch", "abort"]
settle_ms = 100
settle_max_ms = 1000
abort_grace_ms = 2000
stdin = false
input = "line"
priority = 0
[conversation.tools.cargo_check.spawn.notifications]
on_success = true
on_failure = true
on_waiting = true
on_content = false
deliver = ["response", "message", "turn"]
[conversation.tools.cargo_check.spawn.lifecycle]
on_turn_end = "inquire"
timeout_secs = 300

[conversation]
detached = "deny"
[conversation.inquiry]
assistant = { model = "…" }
[store]
url = "sqlite:///…"
retention_secs = 604800
"""


def test_F_the_example_of_the_specification_becomes_a_tool() -> None:
    tool = build(FROM_THE_SPEC)
    view = OutputView(limit=16384, mode="bytes", max_lines=400, window="tail")
    expected = {
        "name": "cargo_check",
        "parameters": {
            "type": "object",
            "properties": {"package": {"type": "string", "description": "Package name.", "enum": ["a", "b"]}},
            "required": ["package"],
        },
        "description": "Type-check a package.",
        "summary": "…",
        "examples": ("…",),
        "source": "local",
        "actions": ("spawn", "fetch", "abort"),
        "scheduling": "parallel",
        "resources": ("crate:{{ tool.arguments.package }}",),
        "max_running": 4,
        "run": "unattended",
        "run_actions": {"apply": "ask"},
        "result": "unattended",
        "timeout_secs": 600,
        "questions": {"overwrite": QuestionPolicy(target="assistant", answered=True, answer=True)},
        "spawn": SpawnPolicy(on_turn_end="inquire"),
        "retry": RetryPolicy(policy="safe", max_attempts=3, base_delay_ms=200, max_delay_ms=5000),
        "on_crash": "fail",
        "output": OutputPolicy(dispatch=view, model=view, max_output=100 * 1024 * 1024),
    }
    assert {field: getattr(tool, field) for field in expected} == expected


def test_F_what_is_left_out_has_the_defaults_of_the_specification() -> None:
    tool = build(LOCAL)
    assert (tool.run, tool.result, tool.actions, tool.timeout_secs, tool.max_running) == (
        "ask",
        "unattended",
        (),
        None,
        None,
    )
    assert tool.spawn == SpawnPolicy()
    assert tool.parameters == {"type": "object", "properties": {}}
    assert tool.output.model == OutputView(limit=16384, mode="bytes", max_lines=400, window="tail")
    config = load(LOCAL)
    assert (config.conversation.detached, config.store.url, config.store.retention_secs) == ("deny", None, None)
    assert config.runtime.max_running is None
    assert config.root == Path.cwd()


def test_K6_limits_have_the_specified_defaults_and_take_sizes() -> None:
    assert Config().limits.policy() == Limits(
        arguments_bytes=1024**2,
        line_bytes=16 * 1024**2,
        batch_calls=1000,
        live_handles=10_000,
        open_questions=64,
        nesting=64,
        agent_depth=3,
    )
    limits = load('[limits]\narguments_bytes = "2KiB"\nline_bytes = 99\nnesting = 3\n').limits.policy()
    assert (limits.arguments_bytes, limits.line_bytes, limits.nesting) == (2048, 99, 3)


def test_F_the_file_is_found_upwards(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "keephold.toml").touch()
    assert find_config(deep) == tmp_path / "keephold.toml"
    (tmp_path / "a" / "keephold.toml").touch()
    assert find_config(deep) == tmp_path / "a" / "keephold.toml"
    (deep / "keephold.toml").mkdir()
    assert find_config(deep) == tmp_path / "a" / "keephold.toml", "a directory of that name is no configuration"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "x = 1",
            "keephold.toml:1: x: unknown key; known here: conversation, limits, store, runtime, wait_handles, "
            "workflows, engines, agents, mcp, acp, serve",
        ),
        (
            LOCAL + "timout_secs = 3",
            "keephold.toml:4: conversation.tools.t.timout_secs: unknown key; did you mean `timeout_secs`?",
        ),
        (
            LOCAL + "[conversation.tools.t.spawn.notifications]\n\non_sucess = true",
            "keephold.toml:6: conversation.tools.t.spawn.notifications.on_sucess: unknown key; "
            "did you mean `on_success`?",
        ),
        (
            LOCAL + "questions.sure.excluive = true",
            "keephold.toml:4: conversation.tools.t.questions.sure.excluive: unknown key; did you mean `exclusive`?",
        ),
        (
            LOCAL + 'run_actions = { aply = "ask" }',
            "keephold.toml:4: conversation.tools.t.run_actions.aply: unknown key; did you mean `apply`?",
        ),
        (
            LOCAL + "[conversation.tools.t.parameters.p]\nrequird = true",
            "keephold.toml:5: conversation.tools.t.parameters.p.requird: unknown key; did you mean `required`?",
        ),
        (
            LOCAL + "[conversation.tools.t.parameters.p]\nproperties.q.tpe = 'string'",
            "keephold.toml:5: conversation.tools.t.parameters.p.properties.q.tpe: unknown key; did you mean `type`?",
        ),
        (
            LOCAL + "[conversation.tools.t.parameters.p]\nzzz = 1",
            "keephold.toml:5: conversation.tools.t.parameters.p.zzz: unknown key; "
            "a parameter has the keywords of JSON Schema",
        ),
    ],
)
def test_L4_an_unknown_key_is_an_error_with_the_nearest_known_one(text: str, expected: str) -> None:
    assert problem(text) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('timeout_secs = "600"', 'timeout_secs: must be a number, not "600"; without the quotes: 600'),
        ("timeout_secs = true", "timeout_secs: must be a number, not true"),
        ("timeout_secs = inf", "timeout_secs: must be a finite number, not inf"),
        ("timeout_secs = 0", "timeout_secs: must be above 0, not 0; leave it out for the default"),
        ("max_running = 1.5", "max_running: must be a whole number, not 1.5"),
        ("max_running = 0", "max_running: must be at least 1, not 0"),
        ("wire = 'true'", 'wire: must be true or false, not "true"; without the quotes: true'),
        ("description = 3", "description: must be a string, not 3; put it in quotes"),
        ("description = 1979-05-27", "description: must be a string, not a date or time"),
        ("examples = 'one'", 'examples: must be a list, not "one"'),
        ("examples = ['one', 2]", "examples.1: must be a string, not 2; put it in quotes"),
        ("spawn = true", "spawn: must be a table, not true"),
        ("parameters.p = 'string'", 'parameters.p: must be a table, not "string"'),
        (
            "run = 'unatended'",
            'run: must be one of "ask", "unattended", "edit", "skip", not "unatended"; did you mean "unattended"?',
        ),
        (
            "output = { max_output = '100MB' }",
            'output.max_output: must be a size like "100MiB" or "3GiB" (units: B, KiB, MiB, GiB, TiB), '
            'or a number of bytes, not "100MB"',
        ),
        ("output.max_output = 0", "output.max_output: must be at least 1, not 0"),
        ("spawn.notifications.deliver = []", "spawn.notifications.deliver: must not be empty"),
        (
            "questions.q.target = 'asistant'",
            'questions.q.target: must be "user", "assistant" or a table of model settings, which means the assistant, '
            'not "asistant"',
        ),
        (
            "questions.q.answer = 3",
            "questions.q.answer: must be true or false, a string, or a table for a form: the answers a question",
        ),
        ("questions.q = { exclusive = true, target = 'assistant' }", "questions.q: an exclusive question is never"),
        ("function = 'a:b'", 'function: has no meaning for source = "local": a local tool runs `command`'),
        ("spawn.stdin = true", "spawn.stdin: has no effect on a tool that is only called one-shot; add stateful"),
        ("spawn.actions = ['spawn', 'apply']", 'spawn.actions: "apply" needs somewhere to send: stdin = true'),
        ("spawn.actions = ['fetch']", 'spawn.actions: must have "spawn"'),
        ("spawn = { stateful = true, actions = [] }", 'spawn.actions: must have "spawn"'),
        ("spawn = { stateful = false, actions = ['spawn'] }", "spawn.stateful: `actions` are written"),
        ("options.since = 1979-05-27", "options.since: a date or time has no form in JSON; write it in quotes"),
        ("options.max = [1, inf]", "options.max.1: an infinite number or nan has no form in JSON"),
        ("parameters.p = { minimum = 'x' }", "parameters.p: parameters are not a valid JSON Schema"),
        ("parameters.p = { required = 'yes' }", "parameters.p.required: must be true or false"),
        ("resources = ['{{ oops']", "resources.0: "),
    ],
)
def test_L4_a_wrong_value_says_what_was_given_and_what_would_be_right(line: str, expected: str) -> None:
    found = problem(LOCAL + "\n" + line)
    assert found.startswith(f"keephold.toml:5: conversation.tools.t.{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("conversation = 1", "keephold.toml:1: conversation: must be a table, not 1"),
        ("[conversation]\ntools = 1", "keephold.toml:2: conversation.tools: must be a table, not 1"),
        ("[conversation.tools]\nt = 1", "keephold.toml:2: conversation.tools.t: must be a table, not a number"),
        ("[conversation.tools.t]", "keephold.toml:1: conversation.tools.t.source: missing; what would be right"),
        (
            "[conversation.tools.await]",
            'keephold.toml:1: conversation.tools.await.source: missing; what would be right: "b',
        ),
        ("[conversation.tools.t]\nsource = 'local'", "keephold.toml:1: conversation.tools.t.command: missing; what"),
        ("[conversation.tools.t]\nsource = 'python'", "keephold.toml:1: conversation.tools.t.function: missing; what"),
        ("[conversation.tools.t]\nsource = 'mcp'", "keephold.toml:1: conversation.tools.t.server: missing; what would"),
        ("[conversation.tools.t]\nsource = 'terminal'", "keephold.toml:1: conversation.tools.t.command: missing; wh"),
        (
            "[conversation.tools.awiat]\nsource = 'builtin'",
            "keephold.toml:2: conversation.tools.awiat.source: there",
        ),
        (LOCAL.replace("tools.t", "tools.await"), "keephold.toml:1: conversation.tools.await: `await` is the name of"),
        (
            "[conversation.tools.await]\nsource = 'builtin'\ntimeout_secs = 3",
            "keephold.toml:3: conversation.tools.await.timeout_secs: has no meaning for a built-in tool",
        ),
        (
            "[conversation.tools.t]\nsource = 'python'\nfunction = 'mod.fn'",
            'keephold.toml:3: conversation.tools.t.function: must be "module:name"',
        ),
        (
            "[conversation.tools.t]\nsource = 'python'\nfunction = 'm:f'\nparameters.p.type = 'string'",
            'keephold.toml:4: conversation.tools.t.parameters: has no meaning for source = "python": a function',
        ),
    ],
)
def test_F_a_tool_that_cannot_be_is_refused(text: str, expected: str) -> None:
    assert problem(text).startswith(expected)


@pytest.mark.parametrize("name", ["action", "id", "input"])
def test_C1_a_stateful_tool_cannot_use_the_names_of_the_commands(name: str) -> None:
    text = LOCAL + f"[conversation.tools.t.parameters.{name}]\ntype = 'string'\n"
    assert build(text).parameters["properties"] == {name: {"type": "string"}}
    found = problem(text + "[conversation.tools.t.spawn]\nstateful = true\n")
    assert found.startswith(f"keephold.toml:4: conversation.tools.t.parameters.{name}: parameter `{name}` has a name")


def test_L4_every_problem_is_reported_in_the_order_of_the_lines() -> None:
    found = problems(
        "[store]\nretention_secs = -1\n"
        "[conversation.tools.a]\nsource = 'local'\ncomand = 'true'\nspawn.actions = ['spwan']\n"
        "[conversation.tools.b]\nsource = 'loca'\n"
        "[conversation]\ndetached = 'no'\n"
        "[conversation.tools.c]\nsource = 'python'\nfunction = 3\nspawn = { actions = ['fetch'], stdn = true }\n"
    )
    assert [line.split(": ", 2)[:2] for line in found] == [
        ["keephold.toml:2", "store.retention_secs"],
        ["keephold.toml:3", "conversation.tools.a.command"],
        ["keephold.toml:5", "conversation.tools.a.comand"],
        ["keephold.toml:6", "conversation.tools.a.spawn.actions.0"],
        ["keephold.toml:8", "conversation.tools.b.source"],
        ["keephold.toml:10", "conversation.detached"],
        ["keephold.toml:13", "conversation.tools.c.function"],
        ["keephold.toml:14", "conversation.tools.c.spawn.stdn"],
        ["keephold.toml:14", "conversation.tools.c.spawn.actions"],
    ]


def test_K5_a_secret_value_is_never_repeated() -> None:
    text = "[store]\nurl = 'mysql://me:hunter2@db'\n" + LOCAL + "env = { TOKEN = 4242424242 }\n"
    found = problems(text)
    assert found == [
        'keephold.toml:2: store.url: must be "memory:", "sqlite:///path" or "postgresql://user@host/database", '
        "not a string",
        "keephold.toml:6: conversation.tools.t.env.TOKEN: must be a string, not a number; put it in quotes",
    ]


def test_L4_a_kind_of_store_that_does_not_exist_is_refused_with_those_that_do() -> None:
    assert problems("[store]\nurl = 'mysql://db/work'\n") == [
        'keephold.toml:2: store.url: must be "memory:", "sqlite:///path" or "postgresql://user@host/database", '
        "not a string"
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a = 1\nb = = 2\n", "keephold.toml:2: not valid TOML: Invalid value (column 5)"),
        (b"a = 1\na = 2\n", "keephold.toml:2: not valid TOML: Cannot overwrite a value (column 6)"),
        (b'a = """\n\n', "keephold.toml:2: not valid TOML: "),
        (b"a = '\xff'\n", "keephold.toml: not UTF-8 at byte 5; TOML files are UTF-8"),
    ],
)
def test_L4_what_is_not_toml_is_named_with_its_line(content: bytes, expected: str) -> None:
    path = Path("keephold.toml")
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.problems[0].startswith(expected)


def test_L4_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file or directory"):
        load_config(Path("nowhere.toml"))


def test_F_defaults_are_merged_under_every_tool_table_by_table() -> None:
    config = load(
        '[conversation.tools."*"]\nsource = "local"\nrun = "unattended"\nenv = { A = "1", B = "2" }\n'
        "output = { limit = 100, model = { limit = 50 } }\n"
        "[conversation.tools.a]\ncommand = 'true'\nenv = { B = '3' }\noutput.model.max_lines = 9\n"
        "[conversation.tools.b]\ncommand = 'true'\nrun = 'skip'\n"
    )
    a, b = config.conversation.tools["a"], config.conversation.tools["b"]
    assert list(config.conversation.tools) == ["a", "b"], "the defaults are no tool"
    assert (a.run, a.env) == ("unattended", {"A": "1", "B": "3"})
    assert (b.run, b.env) == ("skip", {"A": "1", "B": "2"})
    policy = a.output.policy("head")
    assert (policy.dispatch.limit, policy.model.limit, policy.model.max_lines) == (100, 50, 9)


def test_F_a_mistake_in_the_defaults_is_named_once_where_it_stands() -> None:
    tools = "".join(f"[conversation.tools.{name}]\nsource = 'local'\ncommand = 'true'\n" for name in "ab")
    expected = 'keephold.toml:2: conversation.tools."*".rnu: unknown key; did you mean `run`?'
    assert problem('[conversation.tools."*"]\nrnu = "ask"\n' + tools) == expected
    assert problem('[conversation.tools."*"]\nrnu = "ask"\n') == expected


def test_F_a_default_without_meaning_for_a_tool_is_passed_over() -> None:
    load(
        '[conversation.tools."*"]\ncwd = "x"\ntimeout_secs = 3\nspawn.stdin = true\nspawn.actions = ["spawn"]\n'
        "[conversation.tools.p]\nsource = 'python'\nfunction = 'm:f'\n"
        "[conversation.tools.await]\nsource = 'builtin'\n"
        "[conversation.tools.c]\nsource = 'local'\ncommand = 'true'\nspawn.stateful = false\n"
    )


@pytest.mark.parametrize(
    ("defaults", "own", "actions"),
    [
        ("", "", ()),
        ("", "stateful = true", ("spawn", "fetch", "abort")),
        ("", "stateful = true, stdin = true", ("spawn", "fetch", "apply", "abort")),
        ("", "actions = ['abort', 'spawn']", ("spawn", "abort")),
        ("", "stateful = false", ()),
        ("stateful = true", "", ("spawn", "fetch", "abort")),
        ("stateful = true", "stateful = false", ()),
        ("actions = ['spawn']", "stateful = false", ()),
        ("actions = ['spawn']", "stateful = true", ("spawn",)),
        ("stateful = false", "actions = ['spawn']", ("spawn",)),
    ],
)
def test_C2_the_action_set_follows_from_spawn(defaults: str, own: str, actions: tuple[str, ...]) -> None:
    text = f'[conversation.tools."*"]\nspawn = {{ {defaults} }}\n{LOCAL}spawn = {{ {own} }}\n'
    assert build(text).actions == actions


def test_C2_a_wire_tool_takes_apply() -> None:
    assert build(LOCAL + "wire = true\nspawn.stateful = true\n").actions == ("spawn", "fetch", "apply", "abort")


@pytest.mark.parametrize(
    ("value", "size"), [('"3GiB"', 3 << 30), ('"100 MiB"', 100 << 20), ('"7B"', 7), ("5000", 5000)]
)
def test_O5_max_output_is_a_size(value: str, size: int) -> None:
    assert build(LOCAL + f"output.max_output = {value}\n").output.max_output == size


def test_P1_a_builtin_takes_only_what_the_file_writes() -> None:
    builtin = Tool(name="await", runtime=build(LOCAL).runtime, source="builtin")
    assert configure_builtin(builtin, Config()) is builtin
    config = load('[conversation.tools.await]\nsource = "builtin"\noutput.limit = 9\n')
    changed = configure_builtin(builtin, config)
    assert (changed.run, changed.output.model) == ("unattended", OutputView(limit=9))
    assert build_tools(config, Guard()) == []
