"""`skipfilter spark`: the jobs of `skipfilter.spark` and those of `hub.spark`.

`python -m skipfilter.spark` and `python -m hub.spark` run the same jobs.
"""

from __future__ import annotations

from hub.cli.app import app
from hub.spark.__main__ import main as of_the_hub
from skipfilter.spark.cli import main as of_the_library
from skipfilter.text import example

main = app(
    no_args_is_help=True,
    epilog=example("skipfilter spark tables events/ day", "skipfilter spark match day", "skipfilter spark report day"),
)
main.registered_commands += [*of_the_hub.registered_commands, *of_the_library.registered_commands]


@main.callback()
def _spark() -> None:
    """Match updates with subscribers on Spark: who received what, and who would have.

    `tables`, `ingest` and `publish` work with a hub, the others with tables.
    """
