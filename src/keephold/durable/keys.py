"""Keys: the holder of a key may complete one wait, once (D3, K2).

A key is `hf1.<secret id>.<payload>.<signature>`, safe in a URL. The payload names conversation, call and wait; the
signature is an HMAC-SHA256 of everything before it. `key_id` is a hash of the payload: it names the wait and carries no
authority, so it may be shown where the key may not: `masked` replaces a key by `key:<key_id>`.
"""

import base64
import hashlib
import hmac
import os
import re
from typing import Any, NamedTuple

import msgspec

_FORM = "hf1"
_NO_SECRET = b"\0" * 32
_START = f"{_FORM}."
_CHARS = "[A-Za-z0-9_-]"
_KEY = re.compile(rf"{_FORM}\.[0-9a-f]{{8}}\.({_CHARS}+)(\.{_CHARS}+)?")
"""A key anywhere in a text, also one that was cut off in its payload."""
_UNFINISHED = re.compile(
    rf"((?<!{_CHARS})hf?|{_FORM}|{_FORM}\.[0-9a-f]{{0,8}}|{_FORM}\.[0-9a-f]{{8}}\.({_CHARS}+(\.{_CHARS}{{0,42}})?)?)\Z"
)
"""Text that may become a key with what follows; the signature of a whole key has 43 characters."""
_MASK = re.compile("key:[0-9a-f]{32}")
_WORD = re.compile(r"[A-Za-z0-9_.-]*")

LONGEST = 4096
"""How many characters around a cut are searched for a key: more than any key has whose conversation has a usual
name."""


class Key(str):
    """A completion or event key. As a string it is the authority; `key_id` is not, and is what logs may hold."""

    __slots__ = ("key_id",)

    key_id: str

    def __new__(cls, text: str, key_id: str) -> "Key":
        key = super().__new__(cls, text)
        key.key_id = key_id
        return key

    def __repr__(self) -> str:
        return f"<Key {self.key_id}>"  # never the key itself: representations end up in logs (K5)


class Presented(NamedTuple):
    """A presented key, taken apart and not yet verified."""

    key_id: str
    signed: bytes
    signature: bytes
    secret_id: str = ""
    payload: str = ""

    def names(self) -> tuple[str, str, str] | None:
        """Return conversation, uid and wait as the key says; None if it does not."""
        try:
            padded = self.payload + "=" * (-len(self.payload) % 4)
            return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=tuple[str, str, str])
        except (ValueError, msgspec.MsgspecError):
            return None


def call_secret(secret: bytes, uid: str) -> bytes:
    """Return the secret with which a worker of an engine signs the keys of one call, and no others."""
    return hmac.digest(secret, f"call {uid}".encode(), hashlib.sha256)


def key_id(conversation: str, uid: str, wait: str) -> str:
    """Return the name of a wait, which never changes."""
    return _hash(_payload(conversation, uid, wait))


def make_key(conversation: str, uid: str, wait: str, secret_id: str, secret: bytes) -> Key:
    """Return the key of a wait. The same arguments give the same key."""
    payload = _payload(conversation, uid, wait)
    signed = f"{_FORM}.{secret_id}.{payload}"
    return Key(f"{signed}.{_text(_sign(secret, signed.encode()))}", _hash(payload))


def present(text: str) -> Presented:
    """Take a key apart. Text that is not a key becomes one that nothing can match, at the same cost."""
    signed, _, signature = text.rpartition(".")
    parts = signed.split(".")
    payload = parts[2] if len(parts) == 3 and parts[0] == _FORM else ""
    secret_id = parts[1] if payload else ""
    encoded = signed.encode(errors="surrogatepass")
    return Presented(_hash(payload), encoded, signature.encode(errors="surrogatepass"), secret_id, payload)


def is_key(text: str) -> bool:
    """Whether it looks like a key."""
    return text.startswith(f"{_FORM}.")


def genuine(presented: Presented, secret: bytes | None) -> bool:
    """Whether the signature was made with the secret. One comparison in constant time, for any input."""
    expected = _text(_sign(secret or _NO_SECRET, presented.signed)).encode()
    return hmac.compare_digest(expected, presented.signature) and secret is not None


def masked(value: Any) -> Any:
    """Return JSON as it may be shown (K5): every key in a string is replaced by `key:<key_id>`."""
    if isinstance(value, str):
        return masked_part("", value, "") if _START in value else value
    if isinstance(value, dict):
        return {masked(name): masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return value


def masked_part(before: str, text: str, after: str) -> str:
    """Mask a text that was cut out of a longer one: half a key, whose rest is before or after it, must not be readable
    from the two pieces."""
    lead, rest = _word(before[: -LONGEST - 1 : -1])[::-1], _word(after[:LONGEST])
    whole, start, stop = f"{lead}{text}{rest}", len(lead), len(lead) + len(text)
    shown, place = "", start
    for found in _KEY.finditer(whole) if _START in whole else ():
        if found.end() > start and found.start() < stop:
            shown += whole[place : max(place, found.start())]
            shown += f"key:{_hash(found[1])}" if found[2] else "key:…"  # half a payload has no id
            place = min(found.end(), stop)
    return shown + whole[place:stop]


def unmasked(value: Any, given: Any) -> Any:
    """Return an edit of `masked(given)` with the keys of `given` in the place of their ids."""
    whole = msgspec.json.encode(given, enc_hook=str).decode()
    keys = {f"key:{_hash(found[1])}": found[0] for found in _KEY.finditer(whole)}
    if not keys:
        return value
    made = msgspec.json.encode(value, enc_hook=str).decode()
    return msgspec.json.decode(_MASK.sub(lambda found: keys.get(found[0], found[0]), made))


def unfinished_key(text: str) -> int:
    """Return where a key may begin at the end of a text that continues in the next piece; else the text's length."""
    found = _UNFINISHED.search(text, max(0, len(text) - LONGEST))
    return len(text) if found is None else found.start()


def new_secret() -> tuple[str, bytes]:
    """Return a new secret and its id."""
    return os.urandom(4).hex(), os.urandom(32)


def _word(text: str) -> str:
    """Return the beginning of a text that may be part of a key."""
    found = _WORD.match(text)
    assert found is not None, "it matches anything"
    return found[0]


def _payload(conversation: str, uid: str, wait: str) -> str:
    return _text(msgspec.json.encode([conversation, uid, wait]))


def _sign(secret: bytes, signed: bytes) -> bytes:
    return hmac.digest(secret, signed, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _hash(payload: str) -> str:
    return hashlib.sha256(payload.encode(errors="surrogatepass")).hexdigest()[:32]
