"""`python -m hub` runs the command `hub`."""

from hub.cli import main

main()
