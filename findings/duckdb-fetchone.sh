#!/bin/sh
# After fetchone() of an answer with one row, DuckDB 2 refuses to use a relation of the same connection.
#
# Versions: duckdb 1.5.6 and 2.0.1, Python 3.11 or later.
#
# `connection.execute("SELECT 1").fetchone()` returns the only row.  In DuckDB 1, the connection is then free.  In DuckDB
# 2, the result counts as unfinished until a fetch has returned None: each relation of the connection raises
# ResourceInUseException, while the next execute() works.  The module's own connection (`duckdb.execute`, `duckdb.sql`)
# does the same, so in a notebook one cell breaks another.  A second fetchone() or fetchall() ends it.  And a relation has
# no fetchone() any more.
#
# Output seen, as it is checked below:
#
#     duckdb 1.5.6: the row (1,); then a relation: [(2,)], execute(): [(3,)]; a relation has fetchone: True
#     duckdb 2.0.1: the row (1,); then a relation: ResourceInUseException, execute(): [(3,)]; a relation has fetchone: False
#     duckdb 2.0.1 after another fetchone(), which returns None: a relation: [(2,)]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > try.py <<'PY'
import duckdb


def tried(work):
    try:
        return work()
    except Exception as error:
        return type(error).__name__


connection = duckdb.connect()
row = connection.execute("SELECT 1").fetchone()
relation = tried(lambda: connection.sql("SELECT 2").fetchall())
execute = tried(lambda: connection.execute("SELECT 3").fetchall())
has_it = hasattr(connection.sql("SELECT 4"), "fetchone")
name = f"duckdb {duckdb.__version__}"
print(f"{name}: the row {row}; then a relation: {relation}, execute(): {execute}; a relation has fetchone: {has_it}")
if duckdb.__version__.startswith("2"):
    connection.execute("SELECT 1").fetchone()
    assert connection.fetchone() is None
    print(f"{name} after another fetchone(), which returns None: a relation: {connection.sql('SELECT 2').fetchall()}")
PY
for version in 1.5.6 2.0.1; do
    python3 -m venv "venv-$version"
    "venv-$version/bin/pip" install --quiet --disable-pip-version-check "duckdb==$version"
    "venv-$version/bin/python" try.py
done > seen.txt
cat seen.txt
cat > expected.txt <<'TXT'
duckdb 1.5.6: the row (1,); then a relation: [(2,)], execute(): [(3,)]; a relation has fetchone: True
duckdb 2.0.1: the row (1,); then a relation: ResourceInUseException, execute(): [(3,)]; a relation has fetchone: False
duckdb 2.0.1 after another fetchone(), which returns None: a relation: [(2,)]
TXT
cmp seen.txt expected.txt
