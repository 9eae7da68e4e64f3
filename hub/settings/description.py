"""The settings in words, for help, for `skipfilter settings` and for hub/README.md.

Everything comes from the declarations in `groups`: the name, the default, the unit
and, as the meaning, the first paragraph of the text below the field.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_origin

from hub.settings.quantities import Unit, size
from hub.settings.settings import GROUPS, SECRETS, SERVER_DEFAULTS, Settings
from hub.settings.texts import with_names
from hub.settings.variable_names import variable as variable_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from hub.settings.groups import SettingsGroup


class Description(NamedTuple):
    """A setting in words."""

    name: str
    group: str
    default: Any
    unit: str
    """The unit of a number, or else the type."""
    meaning: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return variable_of(self.name)

    @property
    def is_secret(self) -> bool:
        """Whether the value is never shown."""
        return self.name in SECRETS

    @property
    def server_default(self) -> Any:
        """The default of `skipfilter serve`."""
        return SERVER_DEFAULTS.get(self.name, self.default)

    def plain(self, shown: Callable[[str], str] = variable_of) -> str:
        """Return the meaning without numbers of rules.

        `shown` returns the form of another setting that the meaning names.
        """
        return with_names(_RULES.sub("", self.meaning), Settings.model_fields, shown)

    def shown(self, value: Any) -> str:
        """Return a value as an environment variable has it, and "" if it is not set.

        A list is separated by spaces.  A secret is masked.
        """
        if value is None or value == () or value == "":
            return ""
        if self.name.endswith("_url"):
            return _CREDENTIALS.sub("**********", value)
        if self.is_secret:
            return "**********"
        if isinstance(value, bool):
            return str(value).lower()
        if self.unit == "bytes":
            return size(value)
        if isinstance(value, float):
            return f"{value:.15g}"
        return " ".join(value) if isinstance(value, tuple) else str(value)


_CREDENTIALS: Final = re.compile(r"(?<=//)[^/]*(?=@)|(?<=\?)(?!synchronous=).*")
"""The parts of a URL that may be secret: user and password, and the query."""
_RULES: Final = re.compile(r" \(([NRV]\d+(, )?)+\)")


def descriptions() -> list[Description]:
    """Return all settings in words, in the order of their declarations."""
    return [each for group in groups().values() for each in group]


def groups() -> dict[str, list[Description]]:
    """Return all settings in words, by the title of their group."""
    return dict(map(_described, GROUPS))


def _described(group: type[SettingsGroup]) -> tuple[str, list[Description]]:
    """Return the title of a group, and its settings.

    The title is the docstring of the class.  The meaning of a setting is the first
    paragraph below its field, in one line.
    """
    [declaration] = ast.parse(inspect.getsource(group)).body
    assert isinstance(declaration, ast.ClassDef)
    title = (ast.get_docstring(declaration) or "").removesuffix(".")
    found = []
    for field, text in pairwise(declaration.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(paragraphs))):
                declared = group.model_fields[name]
                meaning = " ".join(paragraphs.partition("\n\n")[0].split())
                found.append(Description(name, title, declared.default, _unit(name, declared), meaning))
    return title, found


def _unit(name: str, field: FieldInfo) -> str:
    """Return the unit of a field or, if it is not a number, its type in words."""
    for one in field.metadata:
        if isinstance(one, Unit):
            return one.name
    if field.annotation is bool:
        return "true or false"
    if get_origin(field.annotation) is Sequence:
        return "list, secret" if name in SECRETS else "list"
    return "text, secret" if name in SECRETS else "text"
