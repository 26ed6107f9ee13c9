"""Questions at the terminal (Q): yes or no, one of several, a line of text, and secrets, which nobody sees."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.person import (
    BACKSPACE,
    CANCELLED,
    CTRL_C,
    CTRL_D,
    CTRL_U,
    CTRL_W,
    DELETE,
    DOWN,
    END,
    ENTER,
    ESCAPE,
    HOME,
    LEFT,
    RIGHT,
    UP,
    Person,
    ask,
    choice,
    person,
    said,
)

from keephold.turn.prompts import Prompt


@pytest.fixture
def somebody() -> Iterator[Person]:
    with person() as one:
        yield one


def test_Q1_a_question_is_shown_with_its_pre_amble(somebody: Person) -> None:
    words: dict[str, Any] = {"pre_amble": "There is\x07 a file.", "text": "Over[b]write\x1b[2J it?"}
    somebody.asked(ask("Boolean", **words, problem="Yes or no!"))
    shown = somebody.sees("Yes or no? [y/n/?]")
    words_shown = ("Yes or no!", "guide g asks", "There is<U+0007> a file.", "Over[b]write<U+001B>[2J it?")
    order = [shown.index(text) for text in words_shown]
    assert order == sorted(order)
    somebody.types("y")
    assert somebody.decides() == said(True)


@pytest.mark.parametrize(
    ("keys", "fields", "answer"),
    [
        ("y", {}, said(True)),
        ("n", {}, said(False)),
        ("YNn", {}, said(False)),  # not to be remembered: a capital says nothing
        ("Y", {"may_remember": True}, said(True, remember=True)),
        ("N", {"may_remember": True}, said(False, remember=True)),
        ("n", {"may_remember": True}, said(False)),
        (ENTER, {"default": True}, said(True)),
        (ENTER, {"default": False}, said(False)),
        (ENTER + "n", {}, said(False)),
        (ENTER + "n", {"default": "yes"}, said(False)),
        (CTRL_C, {"default": True}, CANCELLED),
        (ESCAPE, {"default": True}, CANCELLED),
        (CTRL_D, {"default": True}, CANCELLED),
    ],
)
def test_Q5_a_boolean(somebody: Person, keys: str, fields: dict[str, Any], answer: dict[str, Any]) -> None:
    somebody.asked(ask("Boolean", **fields))
    somebody.sees("Yes or no?")
    somebody.types(keys)
    assert somebody.decides() == answer


COLOURS = ("red", "green", "blue")
MANY = tuple(f"option {number}" for number in range(1, 26))


@pytest.mark.parametrize(
    ("options", "keys", "fields", "answer"),
    [
        (COLOURS, "2\r", {}, said("green")),
        (COLOURS, "13\r", {}, said("blue")),  # no 13: the 3 begins anew
        (COLOURS, "04x2\r", {}, said("green")),
        (COLOURS, DOWN + ENTER, {}, said("red")),
        (COLOURS, UP + ENTER, {}, said("blue")),
        (COLOURS, DOWN * 4 + ENTER, {}, said("red")),
        (COLOURS, f"1{UP}{UP}{ENTER}", {}, said("green")),
        (COLOURS, ENTER, {"default": "green"}, said("green")),
        (COLOURS, DOWN + ENTER, {"default": "green"}, said("blue")),
        (COLOURS, f"{BACKSPACE}{ENTER}3{ENTER}", {"default": "green"}, said("blue")),
        (COLOURS, f"{ENTER}1{ENTER}", {"default": "mauve"}, said("red")),
        (MANY, "25\r", {}, said("option 25")),
        (MANY, "5\r", {"default": "option 2"}, said("option 5")),  # a default was not typed: this is not 25
        (MANY, f"2{DOWN}5\r", {}, said("option 5")),
        (COLOURS, CTRL_C, {"default": "green"}, CANCELLED),
        (COLOURS, ESCAPE, {"default": "green"}, CANCELLED),
        (COLOURS, "2" + CTRL_D, {}, CANCELLED),
    ],
)
def test_Q1_a_selection(
    somebody: Person, options: tuple[str, ...], keys: str, fields: dict[str, Any], answer: dict[str, Any]
) -> None:
    somebody.asked(choice(*options, **fields))
    shown = somebody.sees("then Enter")
    for number, option in enumerate(options, start=1):
        assert f"  {number}  {option}\r\n" in shown
    somebody.types(keys)
    assert somebody.decides() == answer


def test_Q1_the_chosen_option_is_seen(somebody: Person) -> None:
    somebody.asked(choice("red", "\x1b[2Jgreen\nish", default="red"))
    somebody.sees_row("> 1  red", 9)
    somebody.types(DOWN)
    somebody.sees_row("> 2  green ish", 15)
    somebody.types(DOWN)
    somebody.sees_row("> 1  red", 9)
    somebody.types(DOWN + ENTER)
    assert somebody.decides() == said("\x1b[2Jgreen\nish")  # as the tool wrote it
    assert "\x1b[2J" not in somebody.text


@pytest.mark.parametrize(
    ("keys", "fields", "answer"),
    [
        ("Grüße, 漢字 👍\r", {}, said("Grüße, 漢字 👍")),
        ("abc\n", {}, said("abc")),
        ("abx\x7fc\r", {}, said("abc")),
        (f"one two{CTRL_W}three\r", {}, said("one three")),
        (f"one two {CTRL_W}{CTRL_W}{CTRL_W}x\r", {}, said("x")),
        (f"wrong{CTRL_U}right\r", {}, said("right")),
        (f"ac{LEFT}b{RIGHT}{RIGHT}d\r", {}, said("abcd")),
        (f"bc{HOME}a{END}d\r", {}, said("abcd")),
        ("bc\x1b[1~a\x1b[4~d\x01<\x05>\r", {}, said("<abcd>")),
        (f"abXc{LEFT}{LEFT}{DELETE}\r", {}, said("abc")),
        (f"abXc{LEFT}{LEFT}{CTRL_D}\r", {}, said("abc")),
        (f"cut{LEFT}{CTRL_U}\r", {}, said("t")),
        (f"{BACKSPACE}{LEFT}{RIGHT}{DELETE}{CTRL_W}{CTRL_U}a\r", {}, said("a")),
        ("\x1b[200~two\r\nlines\x1b[31m\x1b[201~!\r", {}, said("two\nlines!")),
        ("\x1b[200~copied\n\x1b[201~\r", {}, said("copied")),
        (f"{UP}{DOWN}\x1bf\x1b[1;5C\x1b[15~a\r", {}, said("a")),
        ("\r", {}, said("")),
        ("\r", {"default": "usual"}, said("usual")),
        ("mine\r", {"default": "usual"}, said("mine")),
        ("\r", {"default": 3}, said("")),
        ("half" + CTRL_C, {"default": "usual"}, CANCELLED),
        ("half" + ESCAPE, {"default": "usual"}, CANCELLED),
        (CTRL_D, {}, CANCELLED),
    ],
)
def test_Q1_a_text(somebody: Person, keys: str, fields: dict[str, Any], answer: dict[str, Any]) -> None:
    somebody.asked(ask("Text", **fields))
    shown = somebody.sees("> ")
    assert ("Enter alone gives: usual" in shown) is (fields.get("default") == "usual")
    somebody.types(keys)
    assert somebody.decides() == answer


FORM: dict[str, Any] = {
    "properties": {
        "name": {"type": "string", "title": "Your name", "description": "As in\x07 your passport."},
        "age": {"type": "integer", "minimum": 1},
        "sure": {"type": "boolean", "default": True},
        "colour": {"type": "string", "enum": ["red", "green"]},
        "mail": {"type": "string", "format": "email"},
    },
    "required": ["name", "age", "sure"],
}


def test_Q1_the_fields_of_a_form_are_asked_in_one_prompt(somebody: Person) -> None:
    somebody.asked(ask({"Form": FORM}))
    shown = somebody.sees("1 of 5: Your name")
    assert "What now?" in shown
    somebody.sees("As in<U+0007> your passport.")
    somebody.sees("> ")
    somebody.types(f"Rose{ENTER}")
    somebody.sees("2 of 5: age (whole number, at least 1)")
    somebody.types(f"old{ENTER}")
    somebody.sees("`age`: ")
    somebody.types(f"7{ENTER}")
    somebody.sees("Enter alone gives: true")
    somebody.types(ENTER)
    somebody.sees("2  green")
    somebody.types(f"2{ENTER}")
    somebody.sees("5 of 5: mail (email, optional)")
    somebody.types(ENTER)
    assert somebody.decides() == said({"name": "Rose", "age": 7, "sure": True, "colour": "green"})


def test_Q1_a_line_looks_as_it_is(somebody: Person) -> None:
    somebody.asked(ask("Text"))
    somebody.sees_row(">", 3)
    somebody.types("漢字")
    somebody.sees_row("> 漢字", 7)
    somebody.types(LEFT + "a")
    somebody.sees_row("> 漢a字", 6)
    somebody.types(BACKSPACE * 2)
    somebody.sees_row("> 字", 3)
    somebody.types("\x1b[200~x\ny\x1b[201~")
    somebody.sees_row("> x⏎y字", 6)
    somebody.types(CTRL_U)
    somebody.sees_row("> 字", 3)
    somebody.types(ENTER)
    assert somebody.decides() == said("字")


def test_Q1_a_line_longer_than_the_terminal_moves_sideways(somebody: Person) -> None:
    digits = "0123456789" * 20
    somebody.asked(ask("Text"))
    somebody.sees("> ")
    somebody.types(digits)
    somebody.sees_row("> " + digits[-77:], 80)
    somebody.types(LEFT * 10)
    somebody.sees_row("> " + digits[-77:], 70)  # what follows the cursor stays in sight
    somebody.types(HOME)
    somebody.sees_row("> " + digits[:77], 3)
    somebody.types(END + BACKSPACE + "漢" * 100)
    somebody.sees_row("> " + "漢" * 38, 79)
    somebody.types(ENTER)
    assert somebody.decides() == said(digits[:-1] + "漢" * 100)


SECRET = "ÄÖÜß 漢字"


@pytest.mark.parametrize("keys", [SECRET, f"x{CTRL_U}{SECRET}", f"\x1b[200~{SECRET}\n\x1b[201~"])
def test_K5_a_secret_is_never_shown(somebody: Person, keys: str) -> None:
    """Nor its length: after the prompt comes the end of its line, and nothing else."""
    somebody.asked(ask("Text", text="Password:", secret=True))
    somebody.sees("> ")
    somebody.types(keys)
    somebody.types(ENTER)
    assert somebody.decides() == said(SECRET)
    assert somebody.leaves() == 0
    assert somebody.text.endswith("> \r\n\x1b[?2004l")
    assert not any(character in somebody.text for character in SECRET if character != " ")


def test_K5_a_secret_default_and_a_secret_choice_are_not_shown(somebody: Person) -> None:
    prompts: list[tuple[Prompt, str, str, Any]] = [
        (ask("Text", secret=True, default="tops"), "> ", ENTER, "tops"),
        (ask("Boolean", secret=True, default=True), "[y/n/?] ", ENTER, True),
        (choice("left", "right", secret=True, default="left"), "> ", f"2{ENTER}", "right"),
    ]
    for prompt, end, keys, value in prompts:
        somebody.asked(prompt)
        somebody.sees(end)
        somebody.types(keys)
        assert somebody.decides() == said(value)
        somebody.sees("\r\n\x1b[?2004l")
        assert somebody.text.endswith(f"{end}\r\n\x1b[?2004l")
    assert "tops" not in somebody.text
