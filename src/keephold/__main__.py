"""`python -m keephold` is the same as `keephold`."""

from keephold.cli import main

main(prog_name="keephold")
