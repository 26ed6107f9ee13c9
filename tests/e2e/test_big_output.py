"""A tool that prints gigabytes: memory stays flat, the view is right, and all that is kept can be read (O3–O5)."""

import re
from collections.abc import Callable

import psutil
import pytest
from tests.e2e.driver import Answer, Start, TurnProcess
from tests.soak import tries

MIB = 1 << 20
pytestmark = pytest.mark.timeout(120)

YES = tries(256, soak=2048) * MIB

# Every line of `numbers` has ten bytes, the one at offset 10 k is the number 100000000 + k: any byte can be foretold.
CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.yes]
command = { program = "yes | head -c YES", shell = true }
spawn.stateful = true
output.max_output = "3GiB"

[conversation.tools.numbers]
command = ["seq", "100000000", "114999999"]
""".replace("YES", str(YES))
NUMBERS = 150_000_000


def yes(start: int, stop: int) -> str:
    return ("y\n" * ((stop - start) // 2 + 1))[start % 2 :][: stop - start]


def numbers(start: int, stop: int) -> str:
    lines = "".join(f"{100_000_000 + line}\n" for line in range(start // 10, stop // 10 + 1))
    return lines[start % 10 :][: stop - start]


def run_and_watch(turn: TurnProcess, *calls: tuple[str, object]) -> list[Answer]:
    """Run a batch. The turn's memory, looked at every few milliseconds, must not grow with the output."""
    turn.one("read_output", {"id": "nothing"})  # everything is imported
    process = psutil.Process(turn.process.pid)
    before = process.memory_info().rss
    seen: list[int] = []
    turn.begin(*calls)
    line = turn.receive(lambda: seen.append(process.memory_info().rss), patience=100)
    assert len(seen) >= 5, "too quick to be watched"
    assert max(seen) - before < 32 * MIB
    return [Answer(response) for response in line["responses"]]


def check_view(text: str, total: int, expected: Callable[[int, int], str]) -> None:
    """The tail of so many bytes, behind a marker that counts exactly what is not shown."""
    marker, hint, tail = text.split("\n\n", 2)
    cut = re.fullmatch(r"\.\.\.(\d+) bytes truncated\.\.\.", marker)
    assert cut is not None, marker
    assert "read_output" in hint
    assert tail == expected(int(cut[1]), total)
    assert tail.count("\n") == 400  # max_lines; both kinds of line are short


def test_O5_gigabytes_leave_memory_flat_and_can_be_read_to_the_last_byte(start: Start) -> None:
    turn = start(CONFIG)
    _, waited = run_and_watch(turn, ("yes", {"action": "spawn", "id": "y"}), ("await", {"all": ["y"]}))
    (handle,) = waited.json["completed"]
    check_view(handle["result"], YES, yes)
    for offset in (0, 1, MIB - 3, YES // 3 + 1, YES // 2 - 50, YES // 4 * 3 - 1, YES - 100):
        piece = turn.one("read_output", {"id": "y", "offset": offset, "limit": 100}).json
        assert piece == {
            "id": "y",
            "offset": offset,
            "end": offset + 100,
            "total": YES,
            "content": yes(offset, offset + 100),
        }
    last = turn.one("read_output", {"id": "y", "offset": 3, "from_end": True}).json
    assert (last["offset"], last["end"], last["content"]) == (YES - 3, YES, "\ny\n")
    assert turn.finish() == []


def test_O5_beyond_max_output_the_gap_is_named_exactly(start: Start) -> None:
    turn = start(CONFIG)
    (answer,) = run_and_watch(turn, ("numbers", {}))
    check_view(answer.text, NUMBERS, numbers)

    half = 50 * MIB  # of the default, 100 MiB: the first half of it is kept, and the last
    gap = (half, NUMBERS - half)

    def read(offset: int) -> dict[str, object]:
        found = turn.one("read_output", {"call_id": "0", "offset": offset, "limit": 40}).json  # itself labelled "0"
        assert isinstance(found, dict)
        assert (found.pop("call_id"), found.pop("total"), found.pop("offset")) == ("0", NUMBERS, offset)
        return found

    for offset in (0, half - 41, gap[1], NUMBERS - 40):
        assert read(offset) == {"end": offset + 40, "content": numbers(offset, offset + 40)}
    assert read(half - 5) == {"end": half, "content": numbers(half - 5, half)}  # up to the gap, not across
    for offset in (gap[0], gap[0] + 1, NUMBERS // 2, gap[1] - 1):
        found = read(offset)
        assert (found["end"], found["missing"]) == (gap[1], gap[1] - offset)
        assert f"{gap[1] - offset} bytes" in str(found["content"])
    found = read(gap[1] - 1)
    assert read(int(str(found["end"])))["content"] == numbers(gap[1], gap[1] + 40)
    assert turn.finish() == []
