"""A role of a worker that does what the tests ask for."""

import os
import signal
import sys
from typing import Any

kept: list[bytearray] = []


def answer(body: Any) -> Any:
    match body:
        case "spin":
            while True:
                pass
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case ["allocate", int() as size]:
            return len(bytearray(size))
        case "keep":
            kept.append(bytearray(150 * 1024 * 1024))
        case "abort":
            os.abort()
        case "raise":
            raise ValueError
        case ["reply", str() as content]:
            frame = bytes.fromhex(content)
            os.write(int(sys.argv[2]), len(frame).to_bytes(4, "big") + frame)
            signal.pause()
        case "limits":
            return {"environment": dict(os.environ), "descriptors": len(os.listdir("/proc/self/fd")) - 1}  # noqa: PTH208
        case "write":
            with open("/tmp/keephold-worker-writes", "w") as file:  # noqa: PTH123
                file.write("x")
    return body
