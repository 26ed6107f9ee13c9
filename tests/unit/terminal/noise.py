"""Bytes that no sane program prints: pieces of sequences, numbers beyond all bounds, characters cut in two."""

from hypothesis import strategies as st

_INTRODUCERS = (
    "\x1b[",
    "\x1b[?",
    "\x1b]",
    "\x1bP",
    "\x1b_",
    "\x1b^",
    "\x1bX",
    "\x1b",
    "\x1b(",
    "\x1b#",
    "\x9b",
    "\x90",
)
_PARAMETERS = (";", ":", "?", "$", "!", ">", "0", "1", "7", "1049", "9999", "65535", "4294967296", "38;2;1;2;3", "2026")
_FINALS = (*"hlmHJKP@LMSTrsucnpbXtqGCDABdf`aEI", "\x1b\\", "\x07", "\x18", "40h", "3h", "2027h", "47l", "1049l")
_TEXT = ("a", "hello ", "你", "👩\u200d👩", "e\u0301", "\u0301", "\x7f", "8;;http://x", "0;title", "\u2028", "\x85")
_CONTROLS = ("\r", "\n", "\r\n", "\b", "\b\b\b", "\t", "\x0b", "\x0c", "\0", "\x0e", "\x0f")

pieces = st.sampled_from([*_INTRODUCERS, *_PARAMETERS, *_FINALS, *_TEXT, *_CONTROLS]).map(str.encode)
noise = st.lists(pieces | st.binary(max_size=4), max_size=120).map(b"".join)
