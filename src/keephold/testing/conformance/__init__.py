"""Suites for people who write their own store or engine: what the protocols promise, check by check.

    from keephold.testing.conformance import StoreConformance

    class MyConformance(StoreConformance):
        def make(self):
            return MyStore(...)             # a new, empty store, not open yet
        def again(self, store):
            return MyStore(...)             # the same store, as a second process would open it

    @pytest.mark.parametrize("check", MyConformance.checks())
    async def test_store(check): await MyConformance().run(check)

`EffectsConformance` has the promises of calls with durable effects: its `make` returns a running `Site`. Nothing here
needs pytest. A check is a coroutine that raises `AssertionError`.
"""

from keephold.testing.conformance.effects import EffectsConformance
from keephold.testing.conformance.site import Site
from keephold.testing.conformance.store import StoreConformance

__all__ = ["EffectsConformance", "Site", "StoreConformance"]
