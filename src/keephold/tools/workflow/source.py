"""What the text of an expression says about it before it is run: what it reads, and how its data could grow.

An expression is a model's, so it is looked at before it is compiled. CEL has no loops, and the library stops at 32
levels and 10,000 rounds of its macros. What is left is text and lists that double with every macro: `[s].map(a, a + a)`
twenty times over is a million times `s`. That is bounded here, by counting.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MAX_LENGTH = 2000
"""Characters of an expression."""
MAX_GROWTH = 256
"""How many times larger than what it reads an expression may make its data, by the estimate of `growth`."""

MACROS = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map", "optMap", "optFlatMap"})

_TOKEN = re.compile(
    r"(?P<text>[rRbB]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"))"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<blank>\s+|//[^\n]*)"
    r"|(?P<sign>.)",
    re.DOTALL,
)
_KEY = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"")


@dataclass(frozen=True, slots=True)
class Read:
    """Which variables an expression reads; of one that is an object, which keys, or None for all of it."""

    names: dict[str, frozenset[str] | None]


def reads(source: str, variables: Sequence[str]) -> Read:
    """What of these variables the expression reads. A macro's own variable of that name counts as a reading, too."""
    tokens = _tokens(source)
    found: dict[str, set[str] | None] = {}
    for at, (kind, text) in enumerate(tokens):
        if kind != "name" or text not in variables or (at and tokens[at - 1][1] == "."):
            continue
        key = _key(tokens[at + 1 : at + 4])
        keys = found.setdefault(text, set())
        if key is None:
            found[text] = None
        elif keys is not None:
            keys.add(key)
    return Read({name: None if keys is None else frozenset(keys) for name, keys in found.items()})


def growth(source: str) -> float:
    """An upper bound of how often one value of the data can be repeated in what the expression makes of it.

    Within one macro a value is repeated by `+` and by the commas of lists and maps; a macro in or behind another
    multiplies.
    """
    tokens = _tokens(source)
    macros = sum(text in MACROS and after == "(" for (_, text), (_, after) in pairwise(tokens))
    repeats = sum(kind == "sign" and text in "+," for kind, text in tokens)
    if not macros:
        return 1 + repeats
    return float((1 + max(0, repeats - macros) / macros) ** macros)


def builds_lists(source: str) -> bool:
    """Whether it makes lists of lists; the library takes the square of the length for that."""
    return any(text in ("map", "filter") and after == "(" for (_, text), (_, after) in pairwise(_tokens(source)))


def _tokens(source: str) -> list[tuple[str, str]]:
    return [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(source) if match.lastgroup != "blank"]


def _key(after: list[tuple[str, str]]) -> str | None:
    """The key behind a variable: `.key`, `["key"]`, or None where it cannot be told."""
    match after:
        case [(_, "."), ("name", _), (_, "(")]:
            return None
        case [(_, "."), ("name", key), *_]:
            return key
        case [(_, "."), (_, "?"), ("name", key)]:
            return key
        case [(_, "["), ("text", text), (_, "]")] if (key_match := _KEY.fullmatch(text)) is not None:
            return key_match[1] if key_match[1] is not None else key_match[2]
    return None
