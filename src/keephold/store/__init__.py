"""Where what happened is written down before anyone may see it."""
