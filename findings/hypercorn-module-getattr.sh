#!/bin/sh
# hypercorn finds no application that a module makes in `__getattr__`; uvicorn and granian do.
#
# Versions: hypercorn 0.18.0, uvicorn 0.54.0, granian 2.8.9, Python 3.11 or later.
#
# A module may make an attribute when it is first asked for, with a function `__getattr__` (PEP 562).  uvicorn and
# granian look the application up with `getattr`.  hypercorn evaluates its name among the module's variables, which
# never asks that function, and says that it cannot load the application.
#
# Output seen, as it is checked below:
#
#     uvicorn: found
#     granian: found
#     hypercorn: NoAppError
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet hypercorn==0.18.0 uvicorn==0.54.0 granian==2.8.9
cat > "$folder/lazy.py" <<'PYTHON'
async def _application(scope, receive, send): ...


def __getattr__(name):
    if name == "app":
        return _application
    raise AttributeError(name)
PYTHON
cat > "$folder/try.py" <<'PYTHON'
from granian._internal import load_target
from hypercorn.utils import load_application
from uvicorn.importer import import_from_string

for name, load in (
    ("uvicorn", lambda: import_from_string("lazy:app")),
    ("granian", lambda: load_target("lazy:app")),
    ("hypercorn", lambda: load_application("lazy:app", 2**16)),
):
    try:
        load()
    except Exception as error:
        print(f"{name}: {type(error).__name__}")
    else:
        print(f"{name}: found")
PYTHON
(cd "$folder" && timeout 60 venv/bin/python try.py) | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
uvicorn: found
granian: found
hypercorn: NoAppError
SEEN
