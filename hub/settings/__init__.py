"""The settings of a hub, and the checks of what an operator wrote.

settings    ─ Settings: every setting, its meaning and its default
  ├► issuers           ─ the trusted issuers of tokens, and the sources of their keys
  ├► variable_names    ─ names of environment variables that are almost settings
  └► checks            ─ validators, and the messages for what they refuse

What a setting does belongs to the part of the hub that it is for; nothing in here does
anything but read, check and explain.
"""

from hub.settings.settings import (
    DAY,
    DEVELOPMENT_ISSUER,
    DEVELOPMENT_KEY,
    DEVELOPMENT_TOKEN,
    YEAR,
    Settings,
    Unit,
    settings_from_environment,
)

__all__ = [
    "DAY",
    "DEVELOPMENT_ISSUER",
    "DEVELOPMENT_KEY",
    "DEVELOPMENT_TOKEN",
    "YEAR",
    "Settings",
    "Unit",
    "settings_from_environment",
]
