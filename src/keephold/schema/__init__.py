"""The schemas of tools for models, and the check of the arguments that models send."""
