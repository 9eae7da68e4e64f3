"""The table of all settings in hub/README.md, made from hub/settings/settings.py, and
that of the shares of clients in .github/SECURITY.md, made from hub/node/shares.py.

    python -m tests.hub.settings_table     write the tables
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hub
from hub.node.shares import RESOURCES
from hub.settings import Settings
from hub.settings.description import descriptions
from hub.settings.variable_names import PREFIX

if TYPE_CHECKING:
    from hub.settings.description import Description

README: Final = Path(hub.__file__).with_name("README.md")
SECURITY: Final = README.parents[1] / ".github" / "SECURITY.md"

_TABLE: Final = re.compile(r"(?<=<!-- settings -->\n)(\|.*\n)*")
_SHARES: Final = re.compile(r"(?<=<!-- shares -->\n)(\|.*\n)*")


def default(setting: Description) -> str:
    """Return the default of a setting in a table, or "none"."""
    if setting.unit == "bytes":
        return f"`{setting.default}` ({setting.shown(setting.default)})"
    text = setting.shown(setting.default)
    return f"`{text}`" if text else "none"


def table() -> str:
    """Return the table, in Markdown: a row for each setting, in the order of the class."""
    rows = [
        f"| `{each.name}` | {default(each)} | {each.unit} | {with_links(each.meaning.replace('|', '&#124;'))} |"
        for each in descriptions()
    ]
    return "".join(f"{row}\n" for row in ["| setting | default | unit | meaning |", "|---|---|---|---|", *rows])


def with_links(text: str) -> str:
    """Return `text` with a link from each number of a rule to its section."""
    return re.sub(r"\b[NRV]\d+\b", lambda rule: f"[{rule[0]}](protocol/PROTOCOL.md#{_sections()[rule[0]]})", text)


@cache
def _sections() -> dict[str, str]:
    """Return the anchor of the section of each rule."""
    anchor, found = "", {}
    for line in (README.parent / "protocol" / "PROTOCOL.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            anchor = re.sub(r"[^a-z0-9 -]", "", line[3:].lower()).replace(" ", "-")
        elif rule := re.match(r"- \*\*(\w+)\*\*", line):
            found[rule[1]] = anchor
    return found


def with_table(page: str) -> str:
    """Return a page whose table of settings is replaced by the current one."""
    return _TABLE.sub(lambda _: table(), page, count=1)


def with_shares(page: str) -> str:
    """Return a page whose table of shares is replaced by the current one."""
    return _SHARES.sub(lambda _: shares(), page, count=1)


def shares() -> str:
    """Return the table, in Markdown: a row for each resource that clients share."""
    rows = ["| counted | all clients together | one client | until |", "|---|---|---|---|"]
    for counted, setting, until, share in RESOURCES.values():
        bound = Settings.model_fields[setting].default
        one = {"client_share": f"{bound * Settings.model_fields['client_share'].default:,.0f}", "": "the oldest go"}
        own = one.get(share, f"no limit (`{PREFIX}{share.upper()}`)")
        rows.append(f"| {counted} | {bound:,.0f} (`{PREFIX}{setting.upper()}`) | {own} | {until} |")
    return "".join(row + "\n" for row in rows)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
    SECURITY.write_text(with_shares(SECURITY.read_text()))
