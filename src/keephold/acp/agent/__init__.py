"""keephold's agent for editors: sessions, their updates, and the questions to the user (X1, X2, X4)."""
