"""Keys: who holds one may complete that one wait, once (D3, K2).

A key is `hf1.<secret id>.<payload>.<signature>`, safe in a URL. The payload names conversation, call and wait; the
signature is an HMAC-SHA256 of everything before it. `key_id` is a hash of the payload: it names the wait and carries no
authority, so it may be shown where the key may not.
"""

import base64
import hashlib
import hmac
import secrets
from typing import NamedTuple

import msgspec

_FORM = "hf1"
_NO_SECRET = b"\0" * 32


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


def new_secret() -> tuple[str, bytes]:
    """A secret and its id."""
    return secrets.token_hex(4), secrets.token_bytes(32)


def _payload(conversation: str, uid: str, wait: str) -> str:
    return _text(msgspec.json.encode([conversation, uid, wait]))


def _sign(secret: bytes, signed: bytes) -> bytes:
    return hmac.digest(secret, signed, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _hash(payload: str) -> str:
    return hashlib.sha256(payload.encode(errors="surrogatepass")).hexdigest()[:32]
