"""Text as it may be shown (K4)."""

from keephold.tools.command import Tail


def test_K4_the_words_of_a_failure_hold_no_control_sequences() -> None:
    tail = Tail(100, lines=10)
    tail.add(b"\x1b[31merror\x1b[0m: no\x07thing\r\n")
    assert tail.text() == "error: nothing"
