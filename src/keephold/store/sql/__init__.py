"""The rules of the stores that speak SQL: operations, reads and their statements, for any database."""
