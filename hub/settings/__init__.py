"""The settings of a hub: reading them, and refusing what is wrong.

settings    ─ Settings: every setting, its meaning and its default
  ├► issuers           ─ the trusted issuers of tokens, and the sources of their keys
  ├► variable_names    ─ names of environment variables that are almost settings
  └► texts             ─ the forms of settings that are texts, and the error messages

Belongs here: reading, checking and explaining settings.  Does not belong here: the use
of a setting.
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
