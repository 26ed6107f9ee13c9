"""The dashboard: what needs a person, what runs, what happened. Pages are made here and work without JavaScript."""
