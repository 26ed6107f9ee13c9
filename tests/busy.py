"""Run a command beside four busy processes: `python -m tests.busy COMMAND…`. No test may be decided by the clock.

The command has an hour; its exit code is that of this program.
"""

import os
import subprocess
import sys

BUSY = 4
LIMIT = 3600.0


def main(command: list[str]) -> int:
    """Return the command's exit code, 1 if it does not end in time."""
    load = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        return subprocess.run(command, timeout=LIMIT, check=False, env={**os.environ, "CI": "1"}).returncode
    except subprocess.TimeoutExpired:
        print(f"it did not end within {LIMIT:g} seconds", file=sys.stderr)
        return 1
    finally:
        for process in load:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
