"""The store in a PostgreSQL database; see `store.py`, which needs the extra `postgres`."""
