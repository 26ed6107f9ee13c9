"""The ids that models and callers choose for handles, and the names of conversations (S6).

An id must look like no other id. It has only visible characters, in their usual (NFKC) form, and each of its words has
letters of one script; Latin letters may stand beside Chinese, Japanese and Korean ones. Ids are checked when they are
chosen, not when they are read: a store may have ids that were made before these rules.

The names of sub-agents' conversations alone tell whose they are, also after a crash (G2): the conversation of a
sub-agent is named `<conversation of its caller>/<agent>@<uid of its handle>`.
"""

import re
import unicodedata

from keephold.errors import KeepholdError, ToolError
from keephold.text import code_point, exact_line, is_seen, json_text, to_utf8

_LONGEST = 128
_PLAIN = re.compile("[!-~]+")
_RIGHT = f"use 1 to {_LONGEST} visible characters without spaces"
_LETTERS = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u0475\u04bb\u04cf\u0501\u051b\u051d"  # Cyrillic
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0405\u0406\u0408\u04c0"
    "\u03b1\u03b9\u03ba\u03bd\u03bf\u03c1\u03c5\u03c7\u03f3"  # Greek
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    "\u0570\u0578\u057d\u0585"  # Armenian
    "\u13a0\u13a1\u13a2\u13a5\u13a9\u13aa\u13ab\u13ac\u13b3\u13b7\u13bb\u13bd\u13c0\u13c2"  # Cherokee
    "\u13c3\u13cf\u13d2\u13d4\u13d5\u13d9\u13da\u13de\u13df\u13e2\u13e6\u13e7\u13f3\u13f4"
    "\ua4d0\ua4d1\ua4d2\ua4d3\ua4d4\ua4d6\ua4d7\ua4d9\ua4da\ua4dc\ua4dd\ua4df\ua4e0"  # Lisu
    "\ua4e1\ua4e2\ua4e3\ua4e6\ua4e7\ua4ea\ua4eb\ua4ec\ua4ee\ua4f0\ua4f2\ua4f3\ua4f4",
    "aeopcyxsijvhldqw" "ABEKMHOPCTYXSIJI" "aikvopuxj" "ABEZHIKMNOPTYX" "hnuo"
    "DRTiYAJEWMHYGh" "ZbRWSVSLCPKdGB" "BPdDTGKJCZFMN" "LSRVHWXYAEIOU",
)  # fmt: skip
"""Letters of other scripts that are drawn as a Latin one."""
_SIGNS = str.maketrans(
    "\u0251\u0261\u01c0\u01c3\u02d0\ua789\u2236\u02bc\u2018\u2019\u201a"
    "\u2010\u2012\u2013\u02d7\u2212\u2044\u2215\u2217",
    "agl!:::'''," "-----//*",
)  # fmt: skip
"""Latin letters and signs that are drawn as another one."""
_EAST_ASIAN = frozenset(("BOPOMOFO", "CJK", "HANGUL", "HIRAGANA", "IDEOGRAPHIC", "KATAKANA", "KATAKANA-HIRAGANA"))
_WORD = re.compile(r"(?:[^\W_]|[\u0300-\u036f])+")
_NO_SCRIPT = frozenset(("DIGIT", "MODIFIER"))
_NAMELESS = {"Cc": "(a control)", "Co": "(private use)", "Cs": "(half of a character)"}


def check_id(id: object) -> str:
    """Return the id if a caller may choose it; otherwise raise `ToolError` (S6)."""
    if not isinstance(id, str) or not 1 <= len(id) <= _LONGEST:
        text = json_text(id)  # the model wrote JSON
        shown = exact_line(text) if len(text) <= 60 else exact_line(text[:60]) + "…"
        raise ToolError(f"{shown} is not a handle id; {_RIGHT}", code="invalid_handle_id")
    problem = id_problem(id)
    if problem is not None:
        raise ToolError(f"`{exact_line(id)}` is not a handle id: {problem}", code="invalid_handle_id")
    if id.startswith("call:"):
        raise ToolError(
            f"handle id `{id}`: ids starting `call:` are reserved; choose another", code="invalid_handle_id"
        )
    return id


def check_conversation(name: str) -> None:
    """Raise `KeepholdError` if a new conversation may not have that name. Single spaces between words are fine."""
    spaced = " ".join(filter(None, name.split(" ")))
    problem = id_problem(name.replace(" ", "-")) if name else f"it is empty; {_RIGHT}"
    if problem is None and spaced != name:
        problem = f"it has spaces that cannot be seen; use `{spaced or 'main'}`"
    if problem is not None:
        raise KeepholdError(
            f"`{exact_line(name)}` is not a name for a conversation: {problem}", code="invalid_conversation"
        )


def call_id(label: str) -> str:
    """Return the id of a one-shot call that gets one (D10), made of the characters of its label that an id may have."""
    return f"call:{made_id(label)}"


def made_id(label: str, longest: int = 100) -> str:
    """Return an id made of a label: every character that an id may not have becomes `-` (W12)."""
    id = unicodedata.normalize("NFKC", to_utf8(label).decode())[:longest]
    id = "".join(each if is_seen(each) and each != " " else "-" for each in id)
    return id if not id or id_problem(id) is None else "".join(each if each.isascii() else "-" for each in id)


def is_plain(id: str) -> bool:
    """Return whether an id has only visible ASCII characters. Nothing can be wrong with those."""
    return _PLAIN.fullmatch(id) is not None


def id_problem(id: str) -> str | None:
    """Return what is wrong with the characters of an id, and what would be right; None if they are fine."""
    if is_plain(id):
        return None
    for each in id:
        if not is_seen(each) or each == " ":
            return f"{_named(each)} may not be in it; {_RIGHT}"
    usual = unicodedata.normalize("NFKC", id)
    if usual != id:
        wrong = next((each for each in id if not unicodedata.is_normalized("NFKC", each)), None)
        what = "its characters are not composed" if wrong is None else f"{_named(wrong)} is a variant"
        return f"{what}; use `{exact_line(usual.translate(_SIGNS))}`"
    if unicodedata.category(id[0]).startswith("M"):
        return f"{_named(id[0])} needs a character before it; begin with a letter, a digit or a sign"
    return _mistakable(id)


def _mistakable(id: str) -> str | None:
    """Return what makes an id look like another one."""
    wrong = next((each for each in id if ord(each) in _SIGNS), None)
    if wrong is not None:
        return f"{_named(wrong)} looks like `{wrong.translate(_SIGNS)}`; use `{id.translate(_SIGNS)}`"
    problems = (_mistakable_word(word) for word in _WORD.findall(id) if not word.isascii())
    return next((problem for problem in problems if problem is not None), None)


def _mistakable_word(word: str) -> str | None:
    letters = [(each, script) for each in word if (script := _script(each)) is not None]
    scripts = [script for each, script in letters if each.isalpha()]
    plain = "".join(str(unicodedata.digit(each, each.translate(_LETTERS))) for each in word)
    if not scripts and not word.isascii() and word.isdigit():
        return f"{_named(letters[0][0])} is a digit without letters of its script; use `{plain}`"
    usual = "LATIN" if "LATIN" in scripts else next(iter(scripts), None)
    other = next((each for each, script in letters if not _together(script, usual)), None)
    if other is not None:
        instead = f"`{plain}`" if plain.isascii() else "letters of one script in each word"
        return f"{_named(other)} in `{word}` could be taken for another letter; use {instead}"
    if scripts and plain.isascii():
        return f"`{word}`, which begins with {_named(word[0])}, looks like Latin letters; use `{plain}`"
    return None


def _script(character: str) -> str | None:
    """Return the script of a letter or digit: the first word of its name. None if every script uses it."""
    if unicodedata.category(character)[0] not in "LN":
        return None
    script = unicodedata.name(character, "UNNAMED").split(" ")[0]
    if script in ("ARABIC-INDIC", "EXTENDED"):
        return "ARABIC"
    return None if script in _NO_SCRIPT else script


def _together(one: str, other: str | None) -> bool:
    return one == other or {one, other} <= _EAST_ASIAN | {"LATIN"}


def _named(character: str) -> str:
    name = unicodedata.name(character, None) or _NAMELESS.get(unicodedata.category(character), "(unassigned)")
    return f"{code_point(character)} {name}"


# Conversations of sub-agents, and calls of steps

_OWN = re.compile(r"/([^/]+)@([0-9a-f]{32})\Z")
_STEP = re.compile(r"([0-9a-f]{32}):")


def conversation_of(caller: str, agent: str, uid: str) -> str:
    """Name the conversation of the agent that runs as that handle of the caller's conversation."""
    return f"{caller}/{agent.replace('/', '-')}@{uid}"


def parent_of(conversation: str) -> str | None:
    """Return the conversation that called it; None if it does not belong to a sub-agent."""
    own = _OWN.search(conversation)
    return None if own is None else conversation[: own.start()]


def agent_of(conversation: str) -> tuple[str, str] | None:
    """Return the id of the agent that the conversation belongs to, and the uid of its handle; None if to no agent."""
    own = _OWN.search(conversation)
    return None if own is None else (own[1], own[2])


def caller_of(conversation: str, call_id: str) -> str | None:
    """Return the uid of the call that made a call: of the workflow whose step it is, or of the agent whose conversation
    it is in. None: a model or a client made it."""
    step, agent = _STEP.match(call_id), agent_of(conversation)
    return step[1] if step is not None else None if agent is None else agent[1]


def outside_label(label: str) -> str:
    """Return the label of a call that a model or a client makes. They choose it, and labels of steps are trusted: so it
    never looks like one."""
    return f"_{label}" if _STEP.match(label) else label


def root_of(conversation: str) -> str:
    """Return the top-level conversation, where the user is."""
    while (parent := parent_of(conversation)) is not None:
        conversation = parent
    return conversation


def depth_of(conversation: str) -> int:
    """Return how many agents are above it."""
    parent = parent_of(conversation)
    return 0 if parent is None else 1 + depth_of(parent)
