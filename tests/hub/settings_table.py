"""The table of all settings in hub/README.md, made from hub/settings/settings.py, and
that of the shares of clients in .github/SECURITY.md, made from hub/node/shares.py.

    python -m tests.hub.settings_table     write the tables

A setting's meaning is the first paragraph of the text below its field.  Its unit is the
`Unit` of its annotation or, if it is not a number, its type.
"""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr

import hub
from hub.node.shares import RESOURCES
from hub.settings import Settings, Unit
from hub.settings.variable_names import PREFIX

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

README: Final = Path(hub.__file__).with_name("README.md")
SECURITY: Final = README.parents[1] / ".github" / "SECURITY.md"

_TABLE: Final = re.compile(r"(?<=<!-- settings -->\n)(\|.*\n)*")
_SHARES: Final = re.compile(r"(?<=<!-- shares -->\n)(\|.*\n)*")


def meanings() -> dict[str, str]:
    """Return the first paragraph below each field of `Settings`, on one line, by name."""
    [settings_class] = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(settings_class, ast.ClassDef)
    found = {}
    for field, text in pairwise(settings_class.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(paragraphs))):
                found[name] = " ".join(paragraphs.partition("\n\n")[0].split())
    return found


def unit(field: FieldInfo) -> str:
    """Return the unit of a field or, if it is not a number, its type in words."""
    for one in field.metadata:
        if isinstance(one, Unit):
            return one.name
    if field.annotation is bool:
        return "true or false"
    if "SecretStr" in str(field.annotation):
        return "text, secret"
    return "list" if isinstance(field.default, tuple) else "text"


def default(field: FieldInfo) -> str:
    """Return the default of a field as an environment variable has it, or "none"."""
    value: Any = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value in (None, "", ()) and not isinstance(value, bool):
        return "none"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, float):
        return f"`{value:g}`"
    if unit(field) == "bytes":
        return f"`{value}` ({value // 2**20} MiB)" if value % 2**20 == 0 else f"`{value}` ({value // 2**10} KiB)"
    return f"`{value}`"


def table() -> str:
    """Return the table, in Markdown: a row for each setting, in the order of the class."""
    texts = meanings()
    rows = ["| setting | default | unit | meaning |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{name}` | {default(field)} | {unit(field)} | {texts[name].replace('|', '&#124;')} |")
    return "".join(row + "\n" for row in rows)


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
