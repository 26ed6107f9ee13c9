"""The URL of a PostgreSQL store. It may hold a password, so that only `Address.name` is ever shown."""

import hashlib
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode

from keephold.errors import KeepholdError

SCHEMA = "keephold"
"""The schema of a URL that names none."""

_URL = re.compile(r"postgres(?:ql)?://(?:([^@/?#]*)@)?([^@/?#]*)(/[^@?#]*)?(?:\?([^#]*))?")
"""User, hosts, path and query. An `@` or `#` elsewhere may belong to a password, of which no part may be shown."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+(?:%[^\s\[\]]+)?)\]|(/.*|[^\s:\[\]]*))(?::([0-9]*))?", re.I)
"""An address of IPv6 or a host, and the port. `urlsplit` refuses an address of IPv6 behind another host."""

Server = tuple[str | None, int | None]
"""Host and port; None is for asyncpg to choose."""


@dataclass(frozen=True)
class Address:
    """A server's database, and the schema in it that holds a store."""

    dsn: str = field(repr=False)
    """The URL without its servers and without `schema=`."""
    servers: tuple[Server, ...]
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
        found = _URL.fullmatch(url.strip())
        if found is None:
            raise ValueError(url)
        user, hosts, path, options = found.groups("")
        query = dict(parse_qsl(options, keep_blank_values=True, strict_parsing=bool(options)))
        servers = _servers(hosts or query.get("host", "").replace("%", "%25"), query.get("port", ""))
    except ValueError:
        raise wrong("it cannot be read (write `@`, `/` and `#` in a password as `%40`, `%2F` and `%23`)") from None
    if hosts and "host" in query:
        raise wrong("it names a host twice (a Unix socket has no other: `postgresql://user@/database?host=/run/x`)")
    schema = query.pop("schema", SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
        raise wrong("`schema` takes small letters, digits and `_`")
    login = quote(user, safe="%:") + "@" if user else ""
    dsn = f"postgresql://{login}{path}" + (f"?{urlencode(query)}" if query else "")
    where = hosts.lower() or query.get("host") or "localhost"
    return Address(dsn, servers, schema, f"PostgreSQL at {where}{path or '/'}, schema {schema}")


def _servers(hosts: str, ports: str) -> tuple[Server, ...]:
    """Read a list of hosts, and the ports of those without their own. Raise ValueError if it is wrong."""
    names, numbers = hosts.split(","), ports.split(",")
    if len(numbers) == 1:
        numbers *= len(names)
    servers: list[Server] = []
    for name, number in zip(names, numbers, strict=True):
        found = _HOST.fullmatch(name)
        if found is None or (hosts and not name):
            raise ValueError(name)
        port = int(found[3] or number or 0)
        if not 0 <= port < 1 << 16:
            raise ValueError(port)
        servers.append((unquote(found[1] or found[2]) or None, port or None))
    return tuple(servers)


def shown(url: str) -> str:
    """Return how a store may be shown to people: a PostgreSQL store without the user and the password."""
    if not url.startswith(("postgresql:", "postgres:")):
        return url
    try:
        return address(url).name
    except KeepholdError:
        return "a PostgreSQL database"


def wrong(why: str) -> KeepholdError:
    return KeepholdError(
        f"that is not the URL of a PostgreSQL store: {why}; use `postgresql://user@host/database`, and "
        "`?schema=name` to choose a schema",
        code="unsupported_store",
    )
