"""A Mercure hub: publish and subscribe over Server-Sent Events.

    from hub import Settings, create_app
    app = create_app(Settings(publisher_key="…", subscriber_key="…", anonymous=True))

`uvicorn hub:app` serves a hub.  Its settings come from environment variables such as
HUB_PUBLISHER_KEY.

Numbers such as N44 are rules of the protocol.  hub/protocol/PROTOCOL.md lists them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from hub.auth.grant import Grant
    from hub.client import Client, SyncClient
    from hub.errors import ConfigurationError, HubError
    from hub.http.embedding import HubApplication, create_app
    from hub.hub import Hub
    from hub.protocol.updates import Update
    from hub.settings import Settings, settings_from_environment

    app: HubApplication

__all__ = [
    "Client",
    "ConfigurationError",
    "Grant",
    "Hub",
    "HubError",
    "Settings",
    "SyncClient",
    "Update",
    "create_app",
    "settings_from_environment",
]

_MODULES: Final = {
    "Client": "hub.client",
    "ConfigurationError": "hub.errors",
    "Grant": "hub.auth.grant",
    "Hub": "hub.hub",
    "HubError": "hub.errors",
    "Settings": "hub.settings",
    "SyncClient": "hub.client",
    "Update": "hub.protocol.updates",
    "create_app": "hub.http.embedding",
    "settings_from_environment": "hub.settings",
}
"""The module that defines each name.

A module is imported when its name is first used (PEP 562).  So a program that uses only
the client does not load the server.
"""


def __getattr__(name: str) -> Any:
    if name == "app":  # made from the environment once, when it is first used
        from hub.http.embedding import app_from_environment

        value: Any = app_from_environment()
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


class _App:
    """The application that `hypercorn hub:app` finds; it is made when it is called."""

    made: HubApplication | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application."""
        if self.made is None:
            self.made = __getattr__("app")
        await self.made(scope, receive, send)


# Hypercorn looks for a name in the module's variables, and so never calls __getattr__.
if "hypercorn" in sys.modules:
    globals()["app"] = _App()
