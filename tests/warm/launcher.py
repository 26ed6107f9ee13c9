"""Have the server run a program warm, and end as the program does.

Signals are passed on; if the launcher is killed, so is the program.
"""

import _socket
import marshal
import os
import signal


def main(address: bytes, real: str, arguments: list[str]) -> None:
    """Be the program `real` with these arguments."""
    there = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    there.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, 1 << 20)
    there.connect(address)
    request = marshal.dumps(([real, *arguments], os.getcwd(), dict(os.environb)))  # noqa: PTH109
    streams = b"".join(fd.to_bytes(4, "little") for fd in (0, 1, 2))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: there.send(str(number).encode()) and None)
    there.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    answer = there.recv(16)
    if answer == b"cold":
        os.execv(real, [real, *arguments])
    code = int(answer or b"70")
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
