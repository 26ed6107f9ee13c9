"""A veil over what a person typed as a password: where a program prints it as it is, it is masked (K5).

A program that wants to show it can: letter by letter with pauses, or with colours in between.
"""

_MASK = b"********"
_SHORTEST = 4  # characters; a shorter one would be found everywhere, and so be told by what is missing


class Veil:
    """A stream in which secrets are replaced, also where one is split over two pieces.

    To that end the last bytes of a piece are held back if a secret could begin with them: until the next piece, or
    until somebody asks for the `rest`.
    """

    def __init__(self) -> None:
        self._secrets: list[bytes] = []
        self._held = b""

    def hide(self, secret: str) -> None:
        """From now on this is not shown."""
        if len(secret) >= _SHORTEST:
            self._secrets.append(secret.encode("utf-8", "replace"))
            self._secrets.sort(key=len, reverse=True)  # one may be part of another

    @property
    def holds(self) -> bool:
        """Whether something is held back."""
        return bool(self._held)

    def pass_on(self, data: bytes) -> bytes:
        """What may be shown of the stream up to here."""
        if not self._secrets:
            return data
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, _MASK)
        length = max(_begun(data, secret) for secret in self._secrets)
        shown, self._held = data[: len(data) - length], data[len(data) - length :]
        return shown

    def rest(self) -> bytes:
        """What was held back: it was no secret after all."""
        rest, self._held = self._held, b""
        return rest


def _begun(data: bytes, secret: bytes) -> int:
    """How many bytes at the end of the data may be the beginning of the secret."""
    lengths = range(min(len(data), len(secret) - 1), 0, -1)
    return next((length for length in lengths if data.endswith(secret[:length])), 0)
