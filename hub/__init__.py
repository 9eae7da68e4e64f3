"""A Mercure hub: publish and subscribe over Server-Sent Events.

    from hub import Settings, create_app
    app = create_app(Settings(publisher_key="…", subscriber_key="…", anonymous=True))

`uvicorn hub:app` serves a hub with the settings of the environment, HUB_PUBLISHER_KEY and so on.
Numbers such as N44 are rules of the protocol; hub/protocol/PROTOCOL.md lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub.errors import ConfigurationError, HubError
from hub.http.application import app_from_environment, create_app
from hub.hub import Hub
from hub.protocol.updates import Update
from hub.settings import Settings, settings_from_environment

if TYPE_CHECKING:
    from hub.http.application import HubApplication

    app: HubApplication

__all__ = [
    "ConfigurationError",
    "Hub",
    "HubError",
    "Settings",
    "Update",
    "create_app",
    "settings_from_environment",
]


def __getattr__(name: str) -> HubApplication:
    # Not at import: a hub is made of the environment only for who asks for it, and then there is one.
    if name == "app":
        application = globals()["app"] = app_from_environment()
        return application
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
