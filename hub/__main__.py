"""`python -m hub` and the command `hub`, which has its options in `hub.cli`."""

from __future__ import annotations

import sys

from skipfilter.text import missing


def main() -> None:
    """Run the command.

    If a package of the extra `hub` is missing, exits with status 1 and a sentence: pip
    installs the command without the extra too.
    """
    try:
        from hub.cli import main as command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("hub", "skipfilter"):
            raise
        sys.exit(missing("hub", error.name, "hub"))
    command()


if __name__ == "__main__":
    main()
