"""The reference is complete and exact: what is in the code is on its page, and what is on the page is in the code."""

import ast
import importlib
import inspect
import itertools
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from pydantic import BaseModel
from tests.docs.declarations import attributes, definitions, members, signatures, source
from tests.docs.pages import PAGES, ROOT, blocks, name, rows, sections

import keephold
import keephold.handles.view
from keephold.cli import COMMANDS, main
from keephold.config import load_config, model

REFERENCE = ROOT / "docs" / "reference"


# Python

PAGE = REFERENCE / "python.md"
MODULES = [importlib.import_module(f"keephold.{name}") for name in keephold._MODULES]
PUBLIC = {name: getattr(module, name) for module in (keephold, *MODULES) for name in module.__all__ if name != "CODES"}
NOT_MADE_BY_HAND = ("Call", "Turn")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_declared_on_the_page_as_in_the_code(name: str) -> None:
    code = source(PUBLIC[name], name)
    shown, real = members(signatures(PAGE, name)), members(code)
    if name in NOT_MADE_BY_HAND:
        del real["__init__"]
    set_on_self = {key: kind for key, kind in attributes(code).items() if key in shown and key not in real}
    assert {key: text for key, text in shown.items() if key not in set_on_self} == real
    for key, kind in set_on_self.items():
        assert kind in ("", shown[key])


@pytest.mark.parametrize("name", ["Handles", "Waited"])
def test_what_a_call_sees_of_handles_is_declared_as_in_the_code(name: str) -> None:
    """Not all of it is public, so the page may leave members out."""
    text = sections(PAGE)["Call"]
    block = text.partition("<!-- handles -->\n```python\n")[2].partition("```")[0]
    [page], [code] = definitions(block, name), definitions(inspect.getsource(keephold.handles.view), name)
    shown, real = members(page), members(code) | {key: "str" for key in attributes(code) if key == "conversation"}
    assert shown
    assert shown == {key: real[key] for key in shown}


def test_the_page_has_no_other_names() -> None:
    titles = set(sections(PAGE)) - {"Python reference", "Other public modules"}
    assert titles == {*PUBLIC, *(module.__name__ for module in MODULES)}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_Y_a_public_module_is_described_with_its_names(module: ModuleType) -> None:
    titles = list(sections(PAGE))
    below = titles[titles.index(module.__name__) + 1 :]
    described = {*itertools.takewhile(lambda title: not title.startswith(("keephold.", "Other")), below)}
    assert described == {*module.__all__} - {"CODES"}


def shown_programs() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield from ((block.where, block.text) for block in blocks(page) if block.language == "python")
    for file in sorted((ROOT / "examples").rglob("*.py")):
        yield name(file), file.read_text()


def imported(text: str) -> set[tuple[str, str]]:
    """Module and name of each import from keephold, and of each attribute of `keephold` that the program uses."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "keephold":
                found |= {(module, each.name) for each in names}
            case ast.Attribute(value=ast.Name(id="keephold"), attr=attribute):
                found.add(("keephold", attribute))
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="keephold"), attr=module), attr=attribute):
                found.add((f"keephold.{module}", attribute))
    return found


def test_Y_every_name_that_the_documentation_imports_is_public_and_listed() -> None:
    listed = {"keephold": {*keephold.__all__, *keephold._MODULES}}
    listed |= {module.__name__: set(module.__all__) for module in MODULES}
    for module, cells in rows(sections(PAGE)["Other public modules"]).items():
        listed[module] = set(re.findall("`([^`]+)`", cells[0]))
        if "every" in cells[0]:
            listed[module] |= {each for each in vars(importlib.import_module(module)) if each[0].isupper()}
        assert not [each for each in listed[module] if not hasattr(importlib.import_module(module), each)]
        listed.setdefault(module.rpartition(".")[0], set()).add(module.rpartition(".")[2])
    hidden = [
        f"{where}: {module}.{each}"
        for where, text in shown_programs()
        for module, each in sorted(imported(text))
        if each not in listed.get(module, ())
    ]
    assert hidden == []


# keephold.toml

NAME = "[conversation.tools.<name>]"
TABLES: dict[str, type[BaseModel]] = {
    "[conversation]": model.ConversationSettings,
    "[conversation.assistant]": model.AssistantSettings,
    "[conversation.inquiry]": model.InquirySettings,
    NAME: model.ToolSettings,
    "output": model.OutputSettings,
    "retry": model.RetrySettings,
    "[conversation.tools.<name>.questions.<id>]": model.QuestionSettings,
    "[conversation.tools.<name>.spawn]": model.SpawnSettings,
    "[conversation.tools.<name>.spawn.lifecycle]": model.LifecycleSettings,
    "[conversation.tools.<name>.spawn.notifications]": model.NotificationSettings,
    "[conversation.tools.<name>.terminal]": model.TerminalSettings,
    "[limits]": model.LimitSettings,
    "[agents.<id>]": model.AgentSettings,
    "[engines.temporal]": model.TemporalSettings,
    "tls": model.TlsSettings,
    "[store]": model.StoreSettings,
    "[runtime]": model.RuntimeSettings,
    "[wait_handles]": model.WaitHandleSettings,
    "[wait_handles.retention_secs]": model.WaitRetention,
    "[workflows]": model.WorkflowSettings,
    "[mcp]": model.McpSettings,
    "[mcp.servers.<name>]": model.McpServerSettings,
    "[acp]": model.AcpSettings,
    "[serve]": model.ServeSettings,
}
"""Which section is about which table. The four caps of a view are those of `output`."""

EFFECTIVE = {
    ("output", "limit"): keephold.policies.OutputView().limit,
    ("output", "mode"): keephold.policies.OutputView().mode,
    ("output", "max_lines"): keephold.policies.OutputView().max_lines,
    ("output", "window"): keephold.policies.OutputView().window,
    ("[conversation.tools.<name>.spawn]", "input"): "line",
    ("[store]", "url"): "memory:",
    ("[store]", "retention_secs"): keephold.Runtime().registry.retention,
}
"""The defaults of keys that are None in their model, because somebody else has the default."""


def fields(table: type[BaseModel]) -> dict[str, str]:
    """Its keys as they are written in a file, with the names they have in Python."""
    return {field.alias or name: name for name, field in table.model_fields.items()}


KEYS = [(title, key) for title, table in TABLES.items() for key in fields(table)]


def reachable(table: type[BaseModel]) -> set[type[BaseModel]]:
    found = {table}
    for field in table.model_fields.values():
        for kind in (field.annotation, *typing.get_args(field.annotation)):
            if inspect.isclass(kind) and issubclass(kind, BaseModel):
                found |= reachable(kind)
    return found


def test_every_table_has_a_section() -> None:
    assert reachable(model.Config) == {model.Config, model.ViewCaps, *TABLES.values()}
    assert set(model.Config.model_fields) <= {title.strip("[]").partition(".")[0] for title in TABLES}
    assert set(model.ViewCaps.model_fields) <= set(model.OutputSettings.model_fields)


@pytest.mark.parametrize("title", TABLES)
def test_a_section_has_the_keys_of_its_table_and_no_others(title: str) -> None:
    assert set(rows(sections(REFERENCE / "config.md")[title])) == set(fields(TABLES[title]))


@pytest.mark.parametrize(("title", "key"), KEYS)
def test_the_default_of_a_key_is_the_one_shown(title: str, key: str) -> None:
    table, shown = TABLES[title], rows(sections(REFERENCE / "config.md")[title])[key][1]
    name = fields(table)[key]
    default = table.model_fields[name].get_default()
    if isinstance(default, BaseModel) or default in (None, {}):
        default = EFFECTIVE.get((title, key))
        assert shown in ("", "`{}`") if default is None else shown
    if shown and default is not None:
        written = tomllib.loads(f"value = {shown.strip('`')}")["value"]
        assert getattr(table.model_validate({key: written}), name) == default


@pytest.mark.parametrize(("title", "key"), KEYS)
def test_every_choice_of_a_key_is_shown(title: str, key: str) -> None:
    row = " ".join(rows(sections(REFERENCE / "config.md")[title])[key])
    table = TABLES[title]
    for choice in choices(table.model_fields[fields(table)[key]].annotation):
        assert f'"{choice}"' in row


def choices(annotation: Any) -> Iterator[str]:
    """The strings a setting is limited to; the values inside a table are another setting's."""
    if typing.get_origin(annotation) is typing.Literal:
        yield from typing.get_args(annotation)
    elif typing.get_origin(annotation) is not dict:
        for part in typing.get_args(annotation):
            yield from choices(part)


IDLE = """
[conversation]
detached = "auto"

[conversation.tools.t]
source = "local"
command = ["true"]
questions.q.target = "assistant"

[conversation.tools.t.spawn]
stateful = true
lifecycle.on_turn_end = "inquire"
"""


def test_keys_that_are_not_acted_on_are_marked(tmp_path: Path) -> None:
    """`keephold check` and the page agree on them; a key that begins to work loses its mark."""
    file = tmp_path / "keephold.toml"
    file.write_text(IDLE)
    noted = [line for line in load_config(file).ignored_settings() if "no model to ask" in line]
    expected = {documented(tuple(line.split(": ")[1].split("."))) for line in noted}
    page = sections(REFERENCE / "config.md")
    marked = {(title, key) for title, key in KEYS if "model" in " ".join(rows(page[title])[key]).lower()}
    assert expected
    assert marked >= expected


def documented(path: tuple[str, ...]) -> tuple[str, str]:
    """Where the page has a setting."""
    match path:
        case ("conversation", "tools", _, "output", key):
            return "output", key
        case ("conversation", "tools", _, "questions", _, key):
            return "[conversation.tools.<name>.questions.<id>]", key
        case ("conversation", "tools", _, *rest, key):
            return "[" + ".".join(["conversation.tools.<name>", *rest]) + "]", key
    table, key = path
    return f"[{table}]", key


# The command line; errors are in test_generated.py


def test_every_command_is_listed() -> None:
    titles = [title for title in sections(REFERENCE / "cli.md") if title.startswith("keephold ")]
    assert titles == [f"keephold {name}" for name in COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_listed(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    text = sections(REFERENCE / "cli.md")[f"keephold {name}"]
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    options = {option: param for each in commands for param in each.params for option in param.opts}
    assert {key.split()[0] for key in rows(text)} == set(options)
    for param in options.values():
        if isinstance(param.type, click.Choice):
            assert [choice for choice in param.type.choices if f"`{choice}`" not in text] == []
        if param.envvar is not None:
            assert f"`{param.envvar}`" in text
