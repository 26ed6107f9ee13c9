"""Keys: who holds one may complete that one wait, once (D3, K2).

A key is `hf1.<secret id>.<payload>.<signature>`, safe in a URL. The payload names conversation, call and wait; the
signature is an HMAC-SHA256 of everything before it. `key_id` is a hash of the payload: it names the wait and carries no
authority, so it may be shown where the key may not: `masked` puts `key:<key_id>` where a key was.
"""

import base64
import hashlib
import hmac
import re
import secrets
from typing import Any, NamedTuple

import msgspec

_FORM = "hf1"
_NO_SECRET = b"\0" * 32
_START = f"{_FORM}."
_CHARS = "[A-Za-z0-9_-]"
_KEY = re.compile(rf"{_FORM}\.[0-9a-f]{{8}}\.({_CHARS}+)(\.{_CHARS}+)?")
"""A key wherever it is in a text, one that was cut off in its payload as well."""
_UNFINISHED = re.compile(
    rf"((?<!{_CHARS})hf?|{_FORM}|{_FORM}\.[0-9a-f]{{0,8}}|{_FORM}\.[0-9a-f]{{8}}\.({_CHARS}+(\.{_CHARS}{{0,42}})?)?)\Z"
)
"""What may become a key with what follows; the signature of a whole one has 43 characters."""
_MASK = re.compile("key:[0-9a-f]{32}")
_WORD = re.compile(r"[A-Za-z0-9_.-]*")

LONGEST = 4096
"""Characters of a key that are looked for around a cut: more than any key has whose conversation has a usual name."""


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
    """A key as somebody presents it, taken apart and not yet believed."""

    key_id: str
    signed: bytes
    signature: bytes


def key_id(conversation: str, uid: str, wait: str) -> str:
    """The name of a wait, the same for ever."""
    return _hash(_payload(conversation, uid, wait))


def make_key(conversation: str, uid: str, wait: str, secret_id: str, secret: bytes) -> Key:
    """The key of a wait. The same arguments give the same key."""
    payload = _payload(conversation, uid, wait)
    signed = f"{_FORM}.{secret_id}.{payload}"
    return Key(f"{signed}.{_text(_sign(secret, signed.encode()))}", _hash(payload))


def present(text: str) -> Presented:
    """Take a key apart. What is no key at all comes out as one that nothing can match, at the same cost."""
    signed, _, signature = text.rpartition(".")
    parts = signed.split(".")
    payload = parts[2] if len(parts) == 3 and parts[0] == _FORM else ""
    return Presented(_hash(payload), signed.encode(errors="surrogatepass"), signature.encode(errors="surrogatepass"))


def is_key(text: str) -> bool:
    """Whether it looks like a key at all."""
    return text.startswith(f"{_FORM}.")


def genuine(presented: Presented, secret: bytes | None) -> bool:
    """Whether the signature was made with the secret. One comparison in constant time, whatever was presented."""
    expected = _text(_sign(secret or _NO_SECRET, presented.signed)).encode()
    return hmac.compare_digest(expected, presented.signature) and secret is not None


def masked(value: Any) -> Any:
    """JSON as it may be shown (K5): wherever a string of it holds a key, `key:<key_id>` is there instead."""
    if isinstance(value, str):
        return masked_part("", value, "") if _START in value else value
    if isinstance(value, dict):
        return {masked(name): masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return value


def masked_part(before: str, text: str, after: str) -> str:
    """The same of a text that was cut out of a longer one: half a key, whose rest is before or after it, is no secret
    to whoever looks at both."""
    lead, rest = _word(before[: -LONGEST - 1 : -1])[::-1], _word(after[:LONGEST])
    whole, start, stop = f"{lead}{text}{rest}", len(lead), len(lead) + len(text)
    shown, place = "", start
    for found in _KEY.finditer(whole) if _START in whole else ():
        if found.end() > start and found.start() < stop:
            shown += whole[place : max(place, found.start())]
            shown += f"key:{_hash(found[1])}" if found[2] else "key:…"  # of half a payload there is no id
            place = min(found.end(), stop)
    return shown + whole[place:stop]


def unmasked(value: Any, given: Any) -> Any:
    """What somebody made of `masked(given)`, with the keys of `given` where their ids are."""
    whole = msgspec.json.encode(given, enc_hook=str).decode()
    keys = {f"key:{_hash(found[1])}": found[0] for found in _KEY.finditer(whole)}
    if not keys:
        return value
    made = msgspec.json.encode(value, enc_hook=str).decode()
    return msgspec.json.decode(_MASK.sub(lambda found: keys.get(found[0], found[0]), made))


def unfinished_key(text: str) -> int:
    """Where a key begins at the end of a text that may go on in the next piece of it; else the text's length."""
    found = _UNFINISHED.search(text, max(0, len(text) - LONGEST))
    return len(text) if found is None else found.start()


def new_secret() -> tuple[str, bytes]:
    """A secret and its id."""
    return secrets.token_hex(4), secrets.token_bytes(32)


def _word(text: str) -> str:
    """What a text begins with that may be part of a key."""
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
