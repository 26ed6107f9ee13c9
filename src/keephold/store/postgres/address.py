"""The URL of a PostgreSQL store. It may hold a password, so that only `Address.name` is ever shown."""

import hashlib
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from keephold.errors import KeepholdError

SCHEMA = "keephold"
"""The schema of a URL that names none."""


@dataclass(frozen=True)
class Address:
    """A server's database, and the schema in it that holds a store."""

    dsn: str = field(repr=False)
    schema: str
    name: str
    """How messages call the store, without the user and the password."""

    def key(self, name: str) -> int:
        """Return the number of an advisory lock. All stores of a database share these numbers."""
        digest = hashlib.blake2b(f"{self.schema}\0{name}".encode("utf-8", "replace"), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    @property
    def channel(self) -> str:
        """The channel on which the processes of the store tell each other what has changed."""
        return f"keephold_{self.key('channel') & (1 << 64) - 1:016x}"


def address(url: str) -> Address:
    """Read a URL; `schema=` in its query names the schema. The error of a wrong one does not repeat it."""
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _wrong("it cannot be read") from None
    schema = next((value for key, value in query if key == "schema"), SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
        raise _wrong("`schema` takes small letters, digits and `_`")
    rest = [(key, value) for key, value in query if key != "schema"]
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(rest), ""))
    host = host or next((value for key, value in rest if key == "host"), "localhost")
    where = f"{host}:{port}" if port else host
    return Address(dsn, schema, f"PostgreSQL at {where}{parts.path or '/'}, schema {schema}")


def shown(url: str) -> str:
    """Return how a store may be shown to people: a PostgreSQL store without the user and the password."""
    if not url.startswith(("postgresql:", "postgres:")):
        return url
    try:
        return address(url).name
    except KeepholdError:
        return "a PostgreSQL database"


def _wrong(why: str) -> KeepholdError:
    return KeepholdError(
        f"that is not the URL of a PostgreSQL store: {why}; use `postgresql://user@host/database`, and "
        "`?schema=name` to choose a schema",
        code="unsupported_store",
    )
