"""The command line.  There is one file for each command.

hub serve      serve.py      options and environment → settings → `hub.process`
hub token      token.py      → `hub.auth.signing`
hub verify     verify.py     → `hub.verify`
hub history    history.py    → `hub.history.transfer`
"""

from __future__ import annotations

import typer

from hub.cli import history, serve, token, verify

main = typer.Typer(
    help="A Mercure hub. Its settings are HUB_… environment variables; hub/settings/settings.py describes them.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
main.command("serve")(serve.serve)
main.command("token")(token.token)
main.command("verify")(verify.verify)
main.add_typer(history.history, name="history")


@main.callback()
def _hub() -> None:
    """Do nothing: `hub` itself has no options."""
