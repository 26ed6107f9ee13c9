"""Templates, the argv made of them, and values on their way into a shell (F, F1, F2, K3)."""

import os
import shutil
import subprocess
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import PATIENCE

from keephold.errors import ConfigError, ToolError
from keephold.tools.template import CommandLine, Template

SHELLS = [name for name in ("sh", "bash") if shutil.which(name)]
HOSTILE = "$(touch pwned); \"; rm -rf /; ' `touch pwned` \\ * ~ $HOME ${1} #x\n"


def values(**arguments: Any) -> dict[str, Any]:
    return {
        "tool": {"name": "t", "arguments": arguments, "answers": {"sure": True}, "options": {"level": 3}},
        "context": {"action": "run", "root": "/r", "conversation_id": "c", "turn_id": "1", "call_id": "i"},
    }


def render(text: str, **arguments: Any) -> str:
    return Template(text, "here").render(values(**arguments))


def argv(command: Any, **arguments: Any) -> list[str]:
    return CommandLine.parse(command, "here").render(values(**arguments))


def refused(command: Any, **arguments: Any) -> str:
    with pytest.raises(ToolError) as raised:
        argv(command, **arguments)
    assert raised.value.code == "template_failed"
    return raised.value.message


def run(command: list[str]) -> str:
    """What the command prints, run in a directory of its own that must stay empty."""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(command, cwd=directory, capture_output=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr, os.listdir(directory)) == (0, b"", []), command  # noqa: PTH208
    return done.stdout.decode()


# Templates


def test_F1_templates_see_tool_and_context() -> None:
    text = (
        "{{ tool.name }} {{ tool.arguments.x }} {{ tool.answers.sure }} {{ tool.options.level }} "
        "{{ context.action }} {{ context.root }} "
        "{{ context.conversation_id }} {{ context.turn_id }} {{ context.call_id }}"
    )
    assert render(text, x="y") == "t y true 3 run /r c 1 i"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as { it } is\n", "as { it } is\n"),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (0.5, "0.5"),
        (["a", 1, None], '["a",1,null]'),
        ({"ä": [True]}, '{"ä":[true]}'),
    ],
)
def test_F_values_become_text(value: Any, text: str) -> None:
    assert render("{{ tool.arguments.x }}", x=value) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ tool.arguments.y }}", "`y` is missing, there is `x`, `none`"),
        ("{{ tool.arguments.keys }}", "`keys` is missing"),
        ("{% if tool.arguments.y %}a{% endif %}", "is defined"),
        ("{{ env }}", "`env` is unknown; a template sees `tool` and `context`"),
        ("{{ tool.arguments.none }}", 'default("", true)'),
        ("{{ tool.arguments.x | map('upper') }}", "| join"),
        ("{{ ''.__class__ }}", "unsafe"),
        ("{{ tool.arguments.update({'x': 1}) }}", "`update` is missing"),
        ("{% include '/etc/passwd' %}", "no loader"),
    ],
)
def test_K3_what_a_template_may_not_do_names_setting_and_reason(text: str, reason: str) -> None:
    with pytest.raises(ToolError) as raised:
        Template(text, "tools.t.command[1]").render(values(x="v", none=None))
    assert raised.value.code == "template_failed"
    assert raised.value.message.startswith("tools.t.command[1]: ")
    assert reason in raised.value.message


def test_F_an_argument_may_be_named_like_a_method() -> None:
    assert render("{{ tool.arguments.items }} {{ tool.arguments['values'] }}", items="a", values="b") == "a b"


def test_F_default_and_is_defined_make_a_name_optional() -> None:
    assert render("{{ tool.arguments.y | default('no') }}{% if tool.arguments.y is defined %}!{% endif %}") == "no"


@pytest.mark.parametrize("text", ["{{ x", "{% if a %}", "{{ a | nofilter }}", "{% nothing %}", "a\0b"])
def test_F_a_bad_template_is_a_problem_of_the_configuration(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^tools\.t\.command\[1\]: "):
        Template(text, "tools.t.command[1]")


# Command lines


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["cargo", "check", "-p", "{{ tool.arguments.x }}"], ["cargo", "check", "-p", HOSTILE]),
        ("cargo check -p {{ tool.arguments.x }}", ["cargo", "check", "-p", HOSTILE]),
        ("cargo 'a b' \"c d\" --p={{tool.arguments.x}}", ["cargo", "a b", "c d", f"--p={HOSTILE}"]),
        ("a {{ 'x  }} y' }}b {# no  word #}", ["a", "x  }} yb", ""]),
        ("a {% if true %}b{% endif %} c\\ d", ["a", "b", "c d"]),
        ({"program": "a b", "args": ["c d", "{{ tool.arguments.x }}"]}, ["a b", "c d", HOSTILE]),
        ({"program": "a"}, ["a"]),
    ],
)
def test_F_words_are_split_before_they_are_rendered(command: Any, expected: list[str]) -> None:
    assert argv(command, x=HOSTILE) == expected


def test_F_an_empty_element_is_left_out_only_if_it_has_a_block() -> None:
    command = [
        "a",
        "",
        "{{ tool.arguments.x }}",
        "{% if tool.arguments.x %}--x{% endif %}",
        "{% if true %}b{% endif %}",
    ]
    assert argv(command, x="") == ["a", "", "", "b"]
    assert argv(command, x="1") == ["a", "", "1", "--x", "b"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ([], "empty"),
        ("", "empty"),
        ([""], "empty"),
        (["sleep", 5], 'here\\[1\\]: .*write "5"'),
        ("it's", "cannot be split into words"),
        ("a {% if x %}-x {{ x }}{% endif %}", "a block ends in the word that it begins in"),
        ({"args": []}, "here.program"),
        ({"program": "a", "args": "b"}, "here.args"),
        ({"program": "a", "shell": "yes"}, "here.shell"),
        ({"program": "a", "arg": []}, "here.arg: unknown key"),
        (7, "a list of words"),
    ],
)
def test_F_a_bad_command_is_a_problem_of_the_configuration(command: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        CommandLine.parse(command, "here")


def test_F1_an_argument_over_128_KiB_is_an_error_that_says_so() -> None:
    longest = 128 * 1024 - 1
    echoed = run(argv(["printf", "%s", "{{ tool.arguments.x }}"], x="é" * (longest // 2) + "a"))
    assert len(echoed.encode()) == longest
    for command in (["printf", "{{ tool.arguments.x }}"], ["sh", "-c", "printf {{ tool.arguments.x }}"]):
        assert "131072 bytes and may be at most 131071 (128 KiB)" in refused(command, x="é" * (64 * 1024))


@pytest.mark.parametrize(
    "command", [["printf", "{{ tool.arguments.x }}"], ["sh", "-c", "printf {{ tool.arguments.x }}"]]
)
def test_F1_what_no_argument_can_hold_is_refused(command: list[str]) -> None:
    for x in ("a\0b", "\0" + "0" * 16 + ".0\0"):  # the second looks like one of our marks
        assert "NUL" in refused(command, x=x)
    assert "surrogate" in refused(command, x="\ud800")


def test_F_a_command_that_renders_to_nothing_is_refused() -> None:
    assert "empty for this call" in refused(["{% if tool.arguments.x %}a{% endif %}"], x=False)


# Shells


def test_F2_shell_joins_program_and_args_into_one_script() -> None:
    command = {"program": "printf", "args": ["%s", "{{ tool.arguments.x }}", "| cat"], "shell": True}
    assert argv(command, x=HOSTILE) == ["sh", "-c", 'printf %s "${1}" | cat', "sh", HOSTILE]
    assert run(argv(command, x=HOSTILE)) == HOSTILE


def test_F2_the_example_of_the_issue_is_echoed_and_not_run() -> None:
    command = {"program": "sh", "args": ["-c", "echo {{ tool.arguments.x }}"]}
    x = "$(touch pwned); \"; rm -rf /; '"
    assert run(argv(command, x=x)) == x + "\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["sh", "-c"], ["sh", "V"]),
        (["/bin/sh", "-c"], ["/bin/sh", "V"]),
        (["bash", "-lc"], ["bash", "V"]),
        (["env", "A=1", "bash", "-ec"], ["bash", "V"]),
        (["bash", "-o", "pipefail", "-c"], ["bash", "V"]),
        (["bash", "-euo", "pipefail", "-c"], ["bash", "V"]),
        (["bash", "-ceuo", "pipefail"], ["bash", "V"]),
        (["bash", "-c", "-e"], ["bash", "V"]),
        (["bash", "--norc", "--rcfile", "f", "-c", "--"], ["bash", "V"]),
        (["timeout", "5", "dash", "-c"], ["dash", "V"]),
        (["zsh", "-fc"], ["zsh", "V"]),
        (["docker", "exec", "c", "{{ 'ba' ~ 'sh' }}", "-c"], ["bash", "V"]),
    ],
)
def test_F2_the_script_of_a_shell_is_found_in_any_argv(before: list[str], after: list[str]) -> None:
    rendered = argv([*before, "f {{ tool.arguments.x }}"], x="V")
    assert rendered[len(before) :] == ['f "${1}"', *after]


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "file", "-c", "{{ tool.arguments.x }}"],
        ["python3", "-c", "{{ tool.arguments.x }}"],
        ["bash", "-e", "{{ tool.arguments.x }}"],
        ["bash", "-c"],
    ],
)
def test_F2_what_is_no_script_is_left_alone(command: list[str]) -> None:
    assert argv(command, x="V")[2:] == [word.replace("{{ tool.arguments.x }}", "V") for word in command[2:]]


def test_F2_own_arguments_of_the_script_keep_their_numbers() -> None:
    script = 'printf "%s," "$0" "$1" {{ tool.arguments.x }} {{ 2 }}'
    assert run(argv(["sh", "-c", script, "own", "{{ tool.arguments.x }}"], x=HOSTILE)) == f"own,{HOSTILE},{HOSTILE},2,"
    assert argv(["sh", "-c", "echo", "{{ 1 }}"]) == ["sh", "-c", "echo", "1"]


def test_F2_a_script_that_runs_another_gives_both_their_values() -> None:
    inner = ["sh", "-c", "printf %s, $0 {{ tool.arguments.x }} {{ 'in' }}"]
    outer = ["sh", "-c", 'printf %s, {{ "out" }}; exec "$@"', "sh", *inner]
    assert run(argv(outer, x=HOSTILE)) == f"out,sh,{HOSTILE},in,"


def test_F2_a_value_is_never_an_argument_of_find() -> None:
    command = ["find", ".", "-exec", "sh", "-c", "echo {{ tool.arguments.x }} $0", "{}", ";"]
    assert "`find`" in refused(command, x="-delete")


SCRIPTS = [
    # each prints the value once, with what stands around it
    ("printf %s {{ x }}", "V"),
    ('printf %s "{{ x }}"', "V"),
    ("printf %s '{{ x }}'", "V"),
    ("printf %s a'b{{ x }}c'd", "abVcd"),
    ("printf %s it\\'s{{ x }}", "it'sV"),
    ('printf %s "a\\"{{ x }}"', 'a"V'),
    ("printf %s \\{{ x }}", "V"),
    ('printf %s "\\{{ x }}"', "\\V"),
    ("printf %s \\\\{{ x }}", "\\V"),
    ("printf %s ${{ x }}", "$V"),
    ('printf %s "${{ x }}"', "$V"),
    ("# don't \"\nprintf %s {{ x }} # it's", "V"),
    ("printf %s a#'{{ x }}'", "a#V"),
    ("printf %s $#{{ x }}", "1V"),
    ('printf %s "$(printf %s {{ x }}.)"', "V."),
    ('printf %s "$(printf %s "{{ x }}.")"', "V."),
    ('printf %s "`printf %s {{ x }}.`"', "V."),
    ("printf %s \"`printf %s '{{ x }}'.`\"", "V."),
    ('printf %s "$(case a in a) printf %s "{{ x }}.";; (b) ;; esac)"', "V."),
    ('printf %s "$( (printf %s "{{ x }}."))"', "V."),
    ("((printf %s a); printf %s '{{ x }}')", "aV"),
    ('printf %s "${none:-{{ x }}}"', "V"),
    ("printf %s \"${none:-a}\"'{{ x }}'", "aV"),
    ("printf %s $((1 << 2)) {{ x }}", "4V"),
    ('cat <<EOF\nit\'s "{{ x }}"\nEOF\n', 'it\'s "V"\n'),
    ("cat <<-EOF; printf %s '{{ x }}'\n\tit's\n\tEOF\n", "it's\nV"),
    ("cat <<'EOF'; printf %s \"{{ x }}\"\n'$(a\nEOF\n", "'$(a\nV"),
    ("f() { printf %s \"$1\"; }\nf '{{ x }}'", "V"),
    ("{% for one in [x] %}printf %s '{{ one }}'{% endfor %}", "V"),
    ("{% set word %}<{{ x }}>{% endset %}printf %s {{ word }}", "<V>"),
    ("{% macro m(v) %}<{{ v }}>{% endmacro %}printf %s {{ m(x) }}", "<V>"),
    ("case {{ x }} in x) ;; *) printf %s '{{ x }}' ;; esac", "V"),
    ("printf %s a\\\n'{{ x }}'", "aV"),
]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("script", "expected"), SCRIPTS)
def test_F2_a_value_stays_one_value_wherever_it_stands(shell: str, script: str, expected: str) -> None:
    script = "{% set x = tool.arguments.x %}" + script
    assert run(argv([shell, "-c", script], x=HOSTILE)) == expected.replace("V", HOSTILE)


@pytest.mark.skipif("bash" not in SHELLS, reason="needs bash")
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("printf %s $'it\\'s {{ tool.arguments.x }}\\x41'", "it's VA"),
        ("cat <<< '{{ tool.arguments.x }}'", "V\n"),
        ("a=(x '{{ tool.arguments.x }}'); printf %s \"${a[1]}\"", "V"),
        ("cat <(printf %s '{{ tool.arguments.x }}')", "V"),
        ("if [[ {{ tool.arguments.x }} == '*' ]]; then :; else printf %s {{ tool.arguments.x }}; fi", "V"),
    ],
)
def test_F2_a_value_stays_one_value_in_what_only_bash_knows(script: str, expected: str) -> None:
    assert run(argv(["bash", "-c", script], x=HOSTILE)) == expected.replace("V", HOSTILE)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo $(( {{ tool.arguments.x }} ))", "whole number"),
        ("(( {{ tool.arguments.x }} ))", "whole number"),
        ("echo $[ {{ tool.arguments.x }} ]", "whole number"),
        ("echo ${a[{{ tool.arguments.x }}]}", "whole number"),
        ("cat <<'EOF'\n{{ tool.arguments.x }}\nEOF", "<<EOF unquoted"),
        ("cat <<{{ tool.arguments.x }}\nEOF", "here-document"),
        ('echo `echo \\"{{ tool.arguments.x }}\\"`', "$( … )"),
        ("{% filter upper %}echo {{ tool.arguments.x }}{% endfilter %}", "filters"),
    ],
)
def test_F2_where_the_shell_would_not_see_a_parameter_the_value_is_refused(script: str, reason: str) -> None:
    assert reason in refused(["bash", "-c", script], x="a[$(touch pwned)]")


def test_F2_arithmetic_takes_a_whole_number() -> None:
    assert run(argv(["sh", "-c", "echo $(( {{ tool.arguments.x }} * 2 ))"], x=-21)) == "-42\n"


hostile_text = st.text(st.sampled_from("$`'\"\\;&|<>(){}[]*?~#!%= -\n\t\re1é\U0001f600\ue000"), max_size=20)
every_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=60)
@given(x=hostile_text | every_text)
def test_F2_whatever_the_value_the_shell_prints_it_and_does_nothing_else(shell: str, x: str) -> None:
    v = "{{ tool.arguments.x }}"
    script = f"printf '%s\\0' {v} \"{v}\" '{v}' a{v}\"b{v}\"'c{v}' \"$(printf %s. {v})\""
    expected = [x, x, x, f"a{x}b{x}c{x}", f"{x}.", ""]
    assert run(argv([shell, "-c", script], x=x)).split("\0") == expected


literal = st.text(st.sampled_from("ab #()*;&|<>~="), max_size=5)
pieces = st.lists(
    st.tuples(st.sampled_from(["'", '"', "\\"]), literal | st.sampled_from(['"', "'", "#'"]), literal), max_size=6
)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=60)
@given(pieces=pieces, x=hostile_text)
def test_F2_the_reading_follows_the_quotes_of_any_word(shell: str, pieces: list[tuple[str, str, str]], x: str) -> None:
    word, expected = "", ""
    for quote, before, after in pieces:
        before = before.replace(quote, "")
        if quote == "\\":
            word += "".join("\\" + char for char in before) + "{{ tool.arguments.x }}"
            expected += before + x
        else:
            word += f"{quote}{before}{{{{ tool.arguments.x }}}}{after}{quote}"
            expected += before + x + after
    assert run(argv([shell, "-c", f"printf %s end{word}"], x=x)) == f"end{expected}"


def test_K3_values_are_not_in_the_script() -> None:
    for script, _ in SCRIPTS:
        rendered = argv(["sh", "-c", "{% set x = tool.arguments.x %}" + script], x="SECRET")
        assert "SECRET" not in rendered[2]
