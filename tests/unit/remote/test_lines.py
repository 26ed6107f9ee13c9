"""What a server's program prints, decoded in whole lines (M6): a long line costs its own length, not its square."""

import codecs

from keephold.tools.remote import transport


def test_M6_lines_come_whole_however_they_were_cut() -> None:
    decoder = codecs.getincrementaldecoder(transport._LINES)(errors="replace")
    snowman = "☃".encode()
    assert [decoder.decode(part) for part in (b"a", snowman[:1], snowman[1:], b"b")] == ["", "", "", ""]
    assert decoder.decode(b"c\nd\ne") == "a☃bc\nd\n"
    assert decoder.decode(b"\xff") == ""
    assert decoder.decode(b"\n") == "e\ufffd\n"
    assert "☃".encode(transport._LINES) == snowman
