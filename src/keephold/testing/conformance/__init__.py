"""Suites for people who write their own store: what the seam promises, check by check.

    from keephold.testing.conformance import StoreConformance

    class MyConformance(StoreConformance):
        def make(self):
            return MyStore(...)             # a new, empty one, not open yet
        def again(self, store):
            return MyStore(...)             # another one on the same place, as a second process would open it

    @pytest.mark.parametrize("check", MyConformance.checks())
    async def test_store(check): await MyConformance().run(check)

Nothing here needs pytest. A check is a coroutine that raises `AssertionError`; its name begins with the rule it proves.
"""

from keephold.testing.conformance.store import StoreConformance

__all__ = ["StoreConformance"]
