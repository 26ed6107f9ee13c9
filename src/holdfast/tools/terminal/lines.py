"""Lines instead of a screen, for where no emulator is installed."""

from collections.abc import Callable

from holdfast.tools.base import Screen


class LineEmulator:
    """The last lines that were printed."""

    def __init__(self, rows: int, cols: int, reply: Callable[[bytes], None]) -> None:
        self._rows, self._cols = rows, cols
        self._reply = reply
        self._data = b""

    def feed(self, data: bytes) -> None:
        self._data = (self._data + data)[-65536:]

    def resize(self, rows: int, cols: int) -> None:
        self._rows, self._cols = rows, cols

    def screen(self) -> Screen:
        lines = self._data.decode("utf-8", "replace").replace("\r", "").split("\n")[-self._rows :]
        lines += [""] * (self._rows - len(lines))
        return Screen(lines=tuple(lines), rows=self._rows, cols=self._cols, cursor=(1, 1), emulator="line")

    def scrollback(self, count: int) -> tuple[str, ...]:
        return ()

    @property
    def alternate(self) -> bool:
        return False

    @property
    def application_keys(self) -> bool:
        return False

    def close(self) -> None:
        pass
