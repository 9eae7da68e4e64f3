"""The settings of a hub: reading them, and refusing what is wrong.

sources     ─ flags, variables, files of secrets, and TOML, in their order
  └► settings          ─ Settings: what holds for several settings together
       └► groups            ─ every setting, its meaning and its default
            ├► issuers           ─ the trusted issuers of tokens, and their keys
            ├► value_types       ─ what a setting may look like, and its unit
            └► texts             ─ forms of settings that are texts, and the errors
                 ├► quantities       ─ durations, sizes and other units
                 └► variable_names   ─ names that are almost settings

Belongs here: reading, checking and explaining settings.  Does not belong here: the use
of a setting.
"""

from hub.settings.quantities import DAY
from hub.settings.settings import Settings
from hub.settings.sources import settings_from_environment
from hub.settings.value_types import YEAR

__all__ = [
    "DAY",
    "YEAR",
    "Settings",
    "settings_from_environment",
]
