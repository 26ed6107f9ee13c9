"""The page of the agent has every event and every public member of a conversation, and says what models are told."""

import inspect
import typing

import msgspec
import pytest
from tests.docs.declarations import attributes, members, signatures, source
from tests.docs.pages import ROOT, blocks, rows, sections

from keephold.agent import events
from keephold.agent.conversation import Conversation
from keephold.agent.requests import instructions

PAGE = ROOT / "docs" / "reference" / "agent.md"
EVENTS = [event.__name__ for event in typing.get_args(events.Event)]
STRUCTS = {
    name: value
    for name, value in vars(events).items()
    if inspect.isclass(value) and issubclass(value, msgspec.Struct) and value.__module__ == events.__name__
}
NOT_PUBLIC = {"end_interrupted", "__init__", "spending", "received", "finished", "parameters", "suspend"}
"""Of a conversation: for the loop, for sub-agents and for the runtime."""
TOKENS = 300


def test_G1_every_event_has_a_section_in_order() -> None:
    titles = list(sections(PAGE))
    start = titles.index("Events") + 1
    assert titles[start : start + len(EVENTS)] == EVENTS
    assert set(titles) - {*titles[:2], "Events", *titles[-2:]} == set(STRUCTS)


@pytest.mark.parametrize("name", STRUCTS)
def test_G1_a_struct_is_declared_on_the_page_as_in_the_code(name: str) -> None:
    assert members(signatures(PAGE, name)) == members(source(STRUCTS[name], name))


def test_G1_a_conversation_is_declared_on_the_page_as_in_the_code() -> None:
    code = source(Conversation, "Conversation")
    shown, real = members(signatures(PAGE, "Conversation")), members(code)
    on_self = {key: kind for key, kind in attributes(code).items() if key in shown and key not in real}
    assert {key: text for key, text in shown.items() if key not in on_self} == {
        key: text for key, text in real.items() if key not in NOT_PUBLIC
    }
    assert {key for key, kind in on_self.items() if kind not in ("", shown[key])} == set()
    assert set(real) >= NOT_PUBLIC


def test_G1_every_stop_reason_is_explained() -> None:
    _, *explained = rows(sections(ROOT / "docs" / "howto" / "agent.md")["Watch the turn"])
    reasons = typing.get_args(events.StopReason)
    assert explained == list(reasons)
    assert [reason for reason in reasons if f'`"{reason}"`' not in sections(PAGE)["TurnAnswer"]] == []


def test_X4_every_event_is_known_to_those_who_read_json() -> None:
    chat = sections(ROOT / "docs" / "howto" / "chat.md")["JSON events"]
    assert [name for name in EVENTS if f"`{name}`" not in chat] == []


def test_G1_the_page_has_what_models_are_told() -> None:
    [shown] = [block.text for block in blocks(PAGE) if block.language == "text"]
    assert shown.split() == instructions("shared").split()


def test_G1_what_models_are_told_is_short() -> None:
    """By the bytes and by the words, whichever is more: no tokenizer is at hand, and none says the same."""
    for form in ("shared", "per_tool"):
        text = instructions(form)
        assert max(len(text.encode()) / 4, len(text.split()) * 1.4) < TOKENS
