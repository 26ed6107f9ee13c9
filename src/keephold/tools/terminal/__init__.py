"""Programs that run in a terminal of their own."""
