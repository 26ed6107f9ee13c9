"""How often random tests try: some of it every time, all of it with `KEEPHOLD_SOAK=1`."""

import os

SOAK = bool(os.environ.get("KEEPHOLD_SOAK"))


def tries(usual: int, *, soak: int) -> int:
    """How many examples, plays or kills a test draws."""
    return soak if SOAK else usual
