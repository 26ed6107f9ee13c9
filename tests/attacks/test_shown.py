"""What is approved is what is shown: nothing hides in a text or reorders it, and no id looks like another (K4, S6)."""

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_chat_prompts import Person
from textual.app import App
from textual.widgets import Static

import keephold
from keephold.acp.agent.permissions import permission
from keephold.cli import printing, prompter
from keephold.cli.top_dialogs import AskScreen, ChoiceScreen, TextScreen, YesNoScreen, request_screen
from keephold.control.resolve_handle import find
from keephold.control.safe_text import Plain
from keephold.errors import KeepholdError, ToolError
from keephold.handles.question import Question
from keephold.ids import call_id, check_conversation, check_id, id_problem, made_id
from keephold.mcp.elicit import ElicitationPrompter, form
from keephold.text import exact, exact_json, is_seen, isolated, isolated_json, readable
from keephold.turn.prompts import Answer, Approved, AskQuestion, Decision, DeliverResult, Denied, Dismissed, RunTool

EVERY = [chr(code) for code in (*range(0x32000), *range(0xE0000, 0xE1000), *range(0x32000, 0x110000, 1021))]
"""All that Unicode has assigned, and some of the rest."""
IGNORABLE = (
    "00AD 034F 061C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F FEFF FFA0 FFF0-FFF8 "
    "1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"
)
"""Default_Ignorable_Code_Point, as DerivedCoreProperties.txt of Unicode 16.0 has it."""
BLANK = "\u2800\u00a0\u1680\u2003\u202f\u205f\u3000\U0001d159\ufffc"
HIDDEN = (
    "\u2800", "\u3164", "\uffa0", "\u115f", "\u00ad", "\u034f", "\u200b", "\u200c", "x\u200dy", "\u2060", "\u2062",
    "\ufe00", "x\ufe0f", "1\ufe0f", "\U000e0041", "\U000e0101", "\u202e", "\u2066", "\u061c", "\ufeff", "\ue000",
)  # fmt: skip
EMOJI = ("❤️", "👩‍👩‍👧", "👩🏽‍🚀", "1️⃣", "🏳️‍🌈", "🚀", "🙂‍↔️", "©️")


def ignorable() -> Iterator[str]:
    for part in IGNORABLE.split():
        first, _, last = part.partition("-")
        yield from map(chr, range(int(first, 16), int(last or first, 16) + 1))


# Every character


def test_K4_every_character_is_visible_or_an_escape() -> None:
    """In every form: as itself where it has ink, as its code point where it has none."""
    every = [each for each in EVERY if each not in "\n\t"]
    apart = "\n".join(every)
    for each, shown, read in zip(every, exact(apart).split("\n"), readable(apart).split("\n"), strict=True):
        kind = unicodedata.category(each)
        if shown == each:
            assert read == each and (each == " " or kind[0] not in "CZ"), hex(ord(each))
        else:
            assert shown == f"<U+{ord(each):04X}>" and not is_seen(each)
            assert read == (" " if kind == "Zs" else shown)


def test_K4_what_fonts_draw_as_nothing_is_an_escape() -> None:
    assert not [each for each in (*ignorable(), *BLANK) if exact(each) == each]


def test_K4_JSON_shows_every_character_and_means_the_same() -> None:
    for at in range(0, len(EVERY), 4096):
        part = EVERY[at : at + 4096]
        shown = exact_json(json.dumps(part, ensure_ascii=False))
        assert json.loads(shown) == part
        assert all(map(is_seen, shown))


@pytest.mark.parametrize("text", EMOJI)
def test_K4_emoji_stay_what_they_are(text: str) -> None:
    assert exact(text) == readable(text) == text
    plain = Plain()
    assert b"".join(plain.feed(bytes([each])) for each in text.encode()) + plain.end() == text.encode()


@given(st.text(st.sampled_from("a1#👩🚀❤\u200d\ufe0f\u20e3\u2800\n")))
def test_K4_a_joint_outside_an_emoji_is_an_escape_in_whatever_pieces_it_comes(text: str) -> None:
    plain = Plain()
    said = b"".join(plain.feed(each.encode()) for each in text) + plain.end()
    assert said.decode() == readable(text)
    for at, each in enumerate(readable(text)):
        assert each not in "\u200d\ufe0f" or readable(text)[max(at - 1, 0)] in "👩🚀❤\ufe0f1#"


# Direction

HEBREW = "\u05d0\u05d1\u05d2"


def test_K4_text_from_right_to_left_cannot_reorder_what_is_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = f"\u2068{HEBREW}\u2069"
    assert isolated(f"one\n{HEBREW}") == f"one\n{inside}"
    assert isolated_json(json.dumps({HEBREW: HEBREW}, ensure_ascii=False)) == f'{{"{inside}": "{inside}"}}'
    rows = [(HEBREW, "allowed"), ("id", "denied")]
    assert printing.table(rows, (0,)) == [[HEBREW, "allowed"], ["id ", "denied "]]  # for programs, as it is
    monkeypatch.setattr(printing, "terminal_width", lambda: 80)
    assert printing.table(rows, (0,))[0][0] == inside


async def test_S6_an_id_is_found_as_a_terminal_has_shown_it(tmp_path: Path) -> None:
    """Copied together with the marks around it."""
    store = f"sqlite:///{tmp_path}/store.db"
    async with keephold.Runtime([build], store=store) as runtime, runtime.turn("main") as turn:
        await turn.run([keephold.ToolCall("1", "build", {"action": "spawn", "id": HEBREW})])
        (record,) = await find(runtime.registry.store, [isolated(HEBREW)], None)
        assert record.id == HEBREW


# Ids

GOOD = (
    "build", "b-1", "<b>bold</b>", "größe", "ñandú", "сборка-2", "task_сборка", "日本build", "東京", "한국어", "שלום",
    "हिन्दी", "العربية", "αβγ", "hızlı", "🚀", "কখ১",
)  # fmt: skip
BAD = {
    "a b": "U+0020 SPACE", "a\tb": "U+0009", "x\u2800": "U+2800 BRAILLE PATTERN BLANK", "x\u200b": "U+200B ZERO WIDTH",
    "x\u202e": "U+202E RIGHT-TO-LEFT OVERRIDE", "x\ufe0f": "U+FE0F VARIATION SELECTOR-16", "x\U000e0041": "U+E0041 TAG",
    "x\ue000": "U+E000 (private use)", "\u3164": "U+3164 HANGUL FILLER", "bu\u0456ld": "U+0456 CYRILLIC SMALL LETTER",
    "\u0441\u043e\u0440\u0443": "use `copy`", "task_\u0441\u043e\u0440\u0443": "use `copy`", "\uff41bc": "use `abc`",
    "e\u0301": "use `é`", "1\u20132": "use `1-2`", "x-\u09ea": "use `4`", "\u0301x": "U+0301 COMBINING ACUTE ACCENT",
    "p\u0430ypal": "use `paypal`", "\u0391\u0392": "use `AB`", "\u03a9mega": "U+03A9 GREEK", "\ud800": "U+D800",
}  # fmt: skip


@pytest.mark.parametrize("id", GOOD)
def test_S6_ids_of_all_scripts_are_fine(id: str) -> None:
    assert check_id(id) == id
    check_conversation(f"{id} {id}")


@pytest.mark.parametrize(("id", "words"), BAD.items())
def test_S6_an_id_that_could_be_another_one_is_refused_by_the_name_of_its_character(id: str, words: str) -> None:
    with pytest.raises(ToolError) as refused:
        check_id(id)
    assert refused.value.code == "invalid_handle_id"
    assert words in refused.value.message
    assert all(is_seen(each) for each in refused.value.message.replace("\u0301", ""))


@given(st.text(max_size=200))
def test_S6_an_id_that_is_made_of_a_label_is_fine(label: str) -> None:
    assert check_id(f"workflow_{made_id(label)}_1")
    assert id_problem(call_id(label)) is None


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def build() -> str:
    """Build it."""
    return "built"


async def test_S6_a_model_is_told_which_character_of_its_id_is_wrong() -> None:
    async with keephold.Runtime([build]) as runtime, runtime.turn("main") as turn:
        calls = [keephold.ToolCall("1", "build", {"action": "spawn", "id": "bu\u0456ld"})]
        (response,) = await turn.run(calls)
    assert response.code == "invalid_handle_id"
    assert "U+0456 CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I" in response.result and "`build`" in response.result


@pytest.mark.parametrize("name", ["m\u0430in", "main\u200b", " main", "a  b", "", "\u202emain"])
async def test_S6_a_new_conversation_is_not_named_like_another_one(name: str) -> None:
    async with keephold.Runtime([]) as runtime:
        with pytest.raises(KeepholdError, match="is not a name for a conversation") as refused:
            async with runtime.turn(name):
                pass
        assert refused.value.code == "invalid_conversation"


async def test_S6_what_was_named_before_the_rule_is_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, id = "m\u0430in\u200b", "bu\u0456ld\u2800"
    store = f"sqlite:///{tmp_path}/store.db"
    with monkeypatch.context() as before:
        before.setattr("keephold.turn.tool_call.check_id", str)
        before.setattr("keephold.turn.turn.check_conversation", str)
        async with keephold.Runtime([build], store=store) as runtime, runtime.turn(name) as turn:
            await turn.run([keephold.ToolCall("1", "build", {"action": "spawn", "id": id})])
            await turn.run([keephold.ToolCall("2", "await", {"all": [id]})])
    async with keephold.Runtime([build], store=store) as runtime, runtime.turn(name) as turn:
        (response,) = await turn.run([keephold.ToolCall("3", "build", {"action": "fetch", "id": id})])
    assert not response.is_error and "built" in response.result


# Prompts


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    person = Person(monkeypatch, rows=20)
    yield person
    person.close()


def run(**arguments: Any) -> RunTool:
    return RunTool(tool="order", action="spawn", id=HEBREW, arguments=arguments, conversation="main")


def deliver(result: str) -> DeliverResult:
    return DeliverResult(tool="read", id=None, result=result, is_error=False, conversation="main")


async def test_P1_keys_that_come_with_a_prompt_do_not_answer_it(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is held down, or was meant for the line before: until there is a pause, only Ctrl-C is heard."""
    monkeypatch.setattr(prompter, "QUIET_SECS", 3600)
    for prompt in (run(item="ink"), deliver("ink"), run(edit="ink")):
        asked = person.asked(prompt, typing=False)
        await person.sees("ink")
        person.press("yYy\ryy\x03")
        assert await asked == Dismissed()
        assert "Run it?" not in person.sent and "May the model" not in person.sent
        person.sent = ""


async def test_P1_what_does_not_fit_is_viewed_before_it_is_approved(person: Person) -> None:
    long = run(**{f"key{number}": number for number in range(25)})
    asked = person.asked(long, typing=False)
    for key in "yYn":
        await person.sees("rows have scrolled away): press v to view all of it before you approve it.\r\nRun it?")
        person.sent = ""
        person.press(key)
    assert await asked == Denied()


def asks(before: str | None, text: str = "May it send this?", default: bool | None = None) -> AskQuestion:
    question = Question(id="q", text=text, answer_type="Boolean", pre_amble=before, default=default)
    return AskQuestion(tool="buy", id=None, question=question, conversation="main", may_remember=True)


@pytest.mark.parametrize(
    "prompt",
    [asks("\n".join(["body"] * 30)), asks("x" * 3000), asks(None, "x" * 3000), asks("body\n" * 30, default=True)],
)
async def test_P7_a_yes_to_a_long_question_needs_all_of_it_to_have_been_seen(
    prompt: AskQuestion, person: Person, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A workflow that may send its first request to a host must not have it scroll away."""
    seen = tmp_path / "seen"

    async def page(argv: list[str]) -> int:  # this terminal does not control the process, so no program can take it
        seen.write_bytes(Path(argv[-1]).read_bytes())
        return 0

    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setattr(person.prompter._tty, "lend", page)
    ends: tuple[tuple[str, Decision], ...] = (("n", Answer(False)), ("vy", Answer(True)))
    for keys, decision in ends:
        asked, viewed = person.asked(prompt, typing=False), False
        for key in ("y", "Y", "\r", *keys):
            if key == "\r" and prompt.question.default is None:
                continue
            await person.sees("" if viewed else "view all of it before you approve it")
            await person.sees("Yes or no? [")
            await person.sees("] ")
            person.sent, viewed = "", key == "v"
            person.press(key)
        assert await asked == decision
    assert seen.read_text() == "\n\n".join(filter(None, (prompt.question.pre_amble, prompt.question.text)))


@pytest.mark.parametrize("text", HIDDEN)
async def test_P1_nothing_hides_in_what_is_approved(person: Person, text: str) -> None:
    """Nor in the form that an MCP client shows."""
    as_json = exact_json(json.dumps(text, ensure_ascii=False))
    shows = (
        (run(to=text), as_json),
        (deliver(text), exact(text)),
        (asks(text), exact(text)),
        (asks("", text), exact(text)),
    )
    for prompt, shown in shows:
        asked = person.asked(prompt, typing=False)
        await person.sees("/?] ")
        assert shown in person.sent and text not in person.sent
        person.press("y")
        assert await asked in (Approved(), Answer(True))  # the original, not its picture
        assert shown in form(prompt)[0] and text not in form(prompt)[0]
        person.sent = ""


async def test_P1_the_id_of_a_prompt_cannot_reorder_it(person: Person) -> None:
    asked = person.asked(run(to=HEBREW), typing=False)
    await person.sees("Run it?")
    assert f"handle \u2068{HEBREW}\u2069" in person.sent and f'"\u2068{HEBREW}\u2069"' in person.sent
    person.press("n")
    await asked


# Prompts of `keephold top`


class Boxes(App[None]):
    """Shows one box, and notes how it was answered."""

    def __init__(self, box: AskScreen) -> None:
        super().__init__()
        self.box = box
        self.said: list[Any] = []

    def on_mount(self) -> None:
        self.push_screen(self.box, self.said.append)


@pytest.mark.parametrize(
    "box",
    [
        YesNoScreen("Really?"),
        ChoiceScreen("Which?", ["one", "two"]),
        TextScreen("Who?"),
        request_screen({"kind": "permission", "tool": "t", "handle_id": None, "action": None, "arguments": {"a": 1}}),
    ],
    ids=lambda box: type(box).__name__,
)
async def test_P1_keys_that_come_with_a_box_do_not_answer_it(box: AskScreen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompter, "QUIET_SECS", 3600)
    app = Boxes(box)
    async with app.run_test() as pilot:
        await pilot.press("y", "enter", "n", "y", "enter")
        assert app.screen is box and app.said == []
        await pilot.press("escape")
        assert app.said == [None]


async def test_P1_a_box_is_approved_when_all_of_it_was_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompter, "QUIET_SECS", 0.01)
    request = {"kind": "result", "tool": "t", "handle_id": HEBREW, "result": "\n".join(map(str, range(60)))}
    app = Boxes(box := request_screen(request))
    async with app.run_test() as pilot:
        while not box.listening:
            await pilot.pause()
        for keys in (("y",), ("end", "y"), ("home", "y")):  # its beginning and its end are not all of it
            await pilot.press(*keys)
            await pilot.wait_for_scheduled_animations()
            assert app.said == []
        assert "lines not seen yet" in str(box.query_one("#hint", Static).render())
        for _ in range(60):
            await pilot.press("down")
            await pilot.wait_for_scheduled_animations()
        await pilot.press("y")
        assert app.said == [True]


async def test_K4_nothing_hides_in_a_box() -> None:
    for fields in (
        {"kind": "result", "result": "a\u200b"},
        {"kind": "permission", "arguments": {"a": "\u2800" * 5000}},
    ):
        box = request_screen({"tool": "t", "handle_id": None, "action": None, **fields})
        app = Boxes(box)
        async with app.run_test():
            shown = str(box.query_one("#asked", Static).render())
            assert "a<U+200B>" in shown or shown.count("\\u2800") == 5000


async def test_P7_a_client_gets_all_of_a_text_or_is_not_asked() -> None:
    long = "x" * 60_000
    for prompt in (run(to=long), deliver(long), asks(long)):
        assert long in form(prompt)[0]
        choice = permission(prompt, "title")
        assert choice is not None and long in choice.fields["content"][0]["content"]["text"]
    asking = ElicitationPrompter()
    for prompt in (run(to=long * 2), deliver(long * 2), asks(long * 2)):
        said = await asking(prompt)
        assert isinstance(said, Dismissed) and "a dialog gets at most 65,536" in str(said.reason)
