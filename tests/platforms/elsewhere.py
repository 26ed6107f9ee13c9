"""Programs that the tests of platforms run in a process of their own: `python elsewhere.py darwin|here|stays STORE`.

`darwin` makes this interpreter look like that of macOS first: its name, none of the names that only Linux has, and no
/proc. `stays` runs a command without listing processes, prints its process group, and waits to be killed.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

ONLY_LINUX = {
    "select": "epoll EPOLL POLLRDHUP",  # the first: `selectors`, which `socket` imports, must not find it
    "os": "pidfd_open memfd_create MFD_ splice SPLICE_ fdatasync eventfd EFD_ O_PATH O_TMPFILE O_NOATIME "
    "pipe2 posix_fallocate posix_fadvise POSIX_FADV copy_file_range sched_getaffinity sched_setaffinity getresuid "
    "getresgid setresuid setresgid getxattr setxattr listxattr removexattr getrandom unshare setns preadv pwritev",
    "socket": "SOCK_NONBLOCK SOCK_CLOEXEC SO_PEERCRED SO_PASSCRED MSG_NOSIGNAL MSG_CMSG_CLOEXEC TCP_KEEPIDLE "
    "TCP_USER_TIMEOUT TCP_QUICKACK AF_NETLINK AF_PACKET AF_VSOCK",
    "fcntl": "F_SETPIPE_SZ F_GETPIPE_SZ F_OFD_ F_ADD_SEALS F_GET_SEALS F_SEAL_ F_NOTIFY DN_",
    "signal": "SIGRTMIN SIGRTMAX SIGPWR SIGPOLL SIGSTKFLT SIGCLD sigwaitinfo sigtimedwait pidfd_send_signal",
    "resource": "prlimit RLIMIT_NICE RLIMIT_RT RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_OFILE RUSAGE_THREAD",
}
"""Names of modules, and of families of them, that Python has on Linux and not on macOS."""


def look_like_darwin() -> None:
    for module, names in ONLY_LINUX.items():
        imported: Any = __import__(module)
        for name in [name for name in dir(imported) if name.startswith(tuple(names.split()))]:
            delattr(imported, name)
    sys.platform = "darwin"
    proxies: Any = type(sys)("_scproxy")  # which urllib imports there
    proxies._get_proxies = proxies._get_proxy_settings = dict
    sys.modules["_scproxy"] = proxies
    for name in ("open", "listdir", "scandir", "stat", "lstat", "readlink", "access"):
        setattr(os, name, _without_proc(getattr(os, name)))


def _without_proc(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *given: Any, **named: Any) -> Any:
        if not isinstance(path, int) and os.fsdecode(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *given, **named)

    return call


def import_everything() -> int:
    """Import every module of keephold, and return how many there are."""
    import importlib
    import pkgutil

    import keephold

    names = [module.name for module in pkgutil.walk_packages(keephold.__path__, "keephold.")]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    return len(names)


async def run(store: str | None) -> None:
    """Run a function, a command that leaves a process behind, and a program in a terminal."""
    import keephold

    @keephold.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    shell = keephold.command(["sh", "-c", "sleep 1000 & echo from $0; echo $!", "a command"], name="shell")
    screen = keephold.terminal(["sh", "-c", "tty; read line; echo got $line"], name="screen")
    tools = [add, shell, screen]
    async with keephold.Runtime(tools, store=store) as runtime, runtime.turn("main") as turn:
        calls = [
            keephold.ToolCall("1", "add", {"a": 1, "b": 2}),
            keephold.ToolCall("2", "shell", {}),
            keephold.ToolCall("3", "screen", {"action": "spawn", "id": "t"}),
            keephold.ToolCall("4", "await", {"output": {"t": "/dev"}}),
            keephold.ToolCall("5", "screen", {"action": "apply", "id": "t", "input": "a line\r"}),
            keephold.ToolCall("6", "await", {"all": ["t"]}),
            keephold.ToolCall("7", "screen", {"action": "fetch", "id": "t"}),
        ]
        said = [str(response.model) for each in calls for response in await turn.run([each])]
    print("\n".join(said))
    assert "3" in said[0] and "from a command" in said[1] and "got a line" in said[4] + said[6], said
    left = int(said[1].split("from a command")[1].split()[0].strip('\\n"}'))
    try:
        os.kill(left, 0)
    except ProcessLookupError:
        return
    raise AssertionError(f"process {left} was left")


async def stay() -> None:
    """Run a command that does not end, and print its process group."""
    import keephold

    words = ["sh", "-c", "echo group $$ leads; sleep 1000"]
    shell = keephold.command(words, name="shell", actions=("spawn", "fetch", "abort"))
    async with keephold.Runtime([shell]) as runtime, runtime.turn("main") as turn:
        calls = [
            keephold.ToolCall("1", "shell", {"action": "spawn", "id": "s"}),
            keephold.ToolCall("2", "await", {"output": {"s": "leads"}}),
            keephold.ToolCall("3", "shell", {"action": "fetch", "id": "s"}),
        ]
        said = [str(response.model) for each in calls for response in await turn.run([each])]
        print("".join(said).partition("group ")[2].split()[0], flush=True)
        await asyncio.sleep(1000)


if __name__ == "__main__":
    if sys.argv[1] == "darwin":
        look_like_darwin()
        print(import_everything(), "modules")
    if sys.argv[1] == "stays":
        sys.modules["psutil"] = None  # type: ignore[assignment]

    import asyncio

    from keephold.platforms import machine

    assert machine.name == "portable"
    if sys.argv[1] == "stays":
        assert not machine.lists
        asyncio.run(stay())
    for store in (None, f"sqlite:///{sys.argv[2]}"):
        asyncio.run(run(store))
    print("platform", machine.name, "lists" if machine.lists else "does not list")
