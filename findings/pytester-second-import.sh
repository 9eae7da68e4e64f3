#!/bin/sh
# After a run of pytest within a test, httpx2 raises errors that are not its own.
#
# Versions: pytest 9.2.0, httpx2 2.16.2, httpcore2 2.16.2, Python 3.11 or later.
#
# The plugin pytester runs pytest within the process, and afterwards removes the modules that this run imported first.
# httpx2 imports httpcore2 with the first client, and keeps a table of its errors from the first request on.  So if the
# inner run sent the first request, the next client imports httpcore2 a second time, whose errors are not in the table: a
# refused connection raises httpcore2.ConnectError, which no `except httpx2.HTTPError` catches.  If the outer process has
# sent a request before, or the inner run has a process of its own, all is well.
#
# Output seen, as it is checked below:
#
#     within the process: httpcore2.ConnectError, an httpx2.HTTPError: False
#     within the process, after a first request: httpx2.ConnectError, an httpx2.HTTPError: True
#     a process of its own: httpx2.ConnectError, an httpx2.HTTPError: True
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pytest==9.2.0 httpx2==2.16.2 httpcore2==2.16.2
cat > "$folder/test_outer.py" <<'PYTHON'
import os
import socket

import httpx2

pytest_plugins = "pytester"


def refused():
    with socket.socket() as bound:  # it does not listen, so a connection is refused
        bound.bind(("127.0.0.1", 0))
        try:
            httpx2.get(f"http://127.0.0.1:{bound.getsockname()[1]}/")
        except Exception as error:
            return error


def test_errors(pytester):
    how, label = os.environ["HOW"], os.environ["LABEL"]
    if how == "first":
        refused()
    pytester.makepyfile(
        """
        import httpx2

        def test_inner():
            try:
                httpx2.get("http://127.0.0.1:9/")  # no service is there
            except httpx2.ConnectError:
                pass
        """
    )
    run = pytester.runpytest_subprocess if how == "subprocess" else pytester.runpytest_inprocess
    run("-p", "no:cacheprovider").assert_outcomes(passed=1)
    error = refused()
    name = f"{type(error).__module__}.{type(error).__name__}"
    with open(os.environ["OUT"], "a") as out:
        print(f"{label}: {name}, an httpx2.HTTPError: {isinstance(error, httpx2.HTTPError)}", file=out)
PYTHON
cd "$folder"
: > seen
for how in "inprocess:within the process" "first:within the process, after a first request" "subprocess:a process of its own"; do
    HOW=${how%%:*} LABEL=${how#*:} OUT="$folder/seen" venv/bin/python -m pytest -q -p no:cacheprovider test_outer.py > log 2>&1 \
        || { cat log; exit 1; }
done
cat seen
cat > expected <<'TEXT'
within the process: httpcore2.ConnectError, an httpx2.HTTPError: False
within the process, after a first request: httpx2.ConnectError, an httpx2.HTTPError: True
a process of its own: httpx2.ConnectError, an httpx2.HTTPError: True
TEXT
diff expected seen
