"""Suites for people who write their own store: what the protocol promises, check by check.

    from keephold.testing.conformance import StoreConformance

    class MyConformance(StoreConformance):
        def make(self):
            return MyStore(...)             # a new, empty store, not open yet
        def again(self, store):
            return MyStore(...)             # the same store, as a second process would open it

    @pytest.mark.parametrize("check", MyConformance.checks())
    async def test_store(check): await MyConformance().run(check)

Nothing here needs pytest. A check is a coroutine that raises `AssertionError`.
"""

from keephold.testing.conformance.store import StoreConformance

__all__ = ["StoreConformance"]
