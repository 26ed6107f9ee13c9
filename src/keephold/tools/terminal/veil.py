"""Secrets that were typed at a prompt, masked in the output of a terminal (K5)."""

HELD_BACK = 0.05
"""Seconds that output may be held back because a secret could begin with it."""

_MASK = b"********"
_SHORTEST = 4  # characters; masking a shorter one would hit everywhere, and so reveal it


class Veil:
    """A stream in which secrets are masked, also if one is split over two pieces.

    To that end the last bytes of a piece are held back if a secret could begin with them: until the next piece, or
    until `rest` is called.
    """

    def __init__(self) -> None:
        self._secrets: list[bytes] = []
        self._held = b""

    def hide(self, secret: str) -> None:
        """Mask this from now on."""
        if len(secret) >= _SHORTEST:
            self._secrets.append(secret.encode("utf-8", "replace"))
            self._secrets.sort(key=len, reverse=True)  # one may be part of another

    @property
    def holds(self) -> bool:
        """Whether something is held back."""
        return bool(self._held)

    def pass_on(self, data: bytes) -> bytes:
        """Return the part of the stream that may be shown so far."""
        if not self._secrets:
            return data
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, _MASK)
        length = max(_begun(data, secret) for secret in self._secrets)
        shown, self._held = data[: len(data) - length], data[len(data) - length :]
        return shown

    def rest(self) -> bytes:
        """Return the bytes that were held back: they are not a secret after all."""
        rest, self._held = self._held, b""
        return rest


def _begun(data: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of the data may be the beginning of the secret."""
    lengths = range(min(len(data), len(secret) - 1), 0, -1)
    return next((length for length in lengths if data.endswith(secret[:length])), 0)
