"""Our agent for editors (X1, X2, X4): sessions, what is shown of them, and what is asked."""
