"""How the READMEs say that the project is installed: from a clone, or from PyPI.

`python -m tests.installation` writes it as `skipfilter.text.PUBLISHED` says.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from skipfilter import __version__
from skipfilter.text import PUBLISHED

ROOT: Final = Path(__file__).parents[1]
VERSION: Final = __version__

_CLONE: Final = """\
Version {version}, not yet on PyPI. Clone this repository. You need make, and Python 3.11 or newer with its `venv` module
(on Debian and Ubuntu: `apt-get install make python3-venv`). In the repository's folder:

```sh
make run     # serve a hub on http://localhost:3000, for development
make test    # run all tests
```

Both first install Python packages into `.venv`. If port 3000 is in use, `make run PORT=4000` takes another one. `make
test` also needs Debian packages, such as Redis and Chromium; it installs those that are missing if it has root's
rights, and lists them otherwise. `make help` lists the other commands.

For your own environment, `pip install '.[hub]'` installs the hub and the command `skipfilter`, and `pip install .` the
library alone.
"""
_PACKAGE: Final = """\
With Python 3.11 or newer:

```sh
pip install 'skipfilter[hub]'
skipfilter serve --dev     # serve a hub on http://localhost:3000, for development
```

If port 3000 is in use, `--port 4000` takes another one. `pip install skipfilter` installs the library alone. This is
version {version}.

In a clone of the repository, `make run` does both, and `make test` runs all tests; both first install Python
packages into `.venv` (on Debian and Ubuntu, they need `apt-get install make python3-venv`). `make test` also needs
Debian packages, such as Redis and Chromium; it installs those that are missing if it has root's rights, and lists them
otherwise. `make help` lists the other commands. Commands on these pages begin with `.venv/bin/`, as in a clone: with
the package, leave that out, and read `skipfilter serve --dev` for `make run`.
"""
_SECTION: Final = re.compile(r"(?<=<!-- installation -->\n).*?(?=<!-- end of installation -->)", re.DOTALL)
_EXTRAS: Final = re.compile(r"(?<=pip install ')(\.|skipfilter)(?=\[)")
_LIBRARY: Final = re.compile(r"`pip install \.` in the repository|`pip install skipfilter`(?= installs it)")


def pages() -> list[Path]:
    """Return the pages that say how something is installed."""
    return [page for page in ROOT.glob("**/*.md") if ".venv" not in page.parts and "build" not in page.parts]


def with_installation(page: str, *, published: bool = PUBLISHED) -> str:
    """Return a page that says how to install the package if it is on PyPI, or if not."""
    page = _EXTRAS.sub("skipfilter" if published else ".", page)
    page = _LIBRARY.sub("`pip install skipfilter`" if published else "`pip install .` in the repository", page)
    section = (_PACKAGE if published else _CLONE).format(version=VERSION)
    return _SECTION.sub(lambda _: section, page)


if __name__ == "__main__":
    for file in pages():
        file.write_text(with_installation(file.read_text("utf-8")), "utf-8")
