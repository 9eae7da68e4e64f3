"""The public names and the dependencies of the packages."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest

import hub
import skipfilter
from skipfilter.text import INSTALL

PUBLIC = {
    "skipfilter": "Amqp CompiledSelector Everything Exact Explanation FieldFilter Index LimitError MATCHERS Matcher "
    "Mqtt PatternError PostingList Selector SelectorIndex SkipFilter SkipFilterError Source Stats UriTemplate UrlPattern "
    "WordPattern compile_matcher",
    "skipfilter.bulk": "BadInput BroadcastLimit PipelineError match",
    "skipfilter.engines": "ENGINES Engine Filter InvertedBitmap LazyDfa Naive OptimizedInvertedBitmap SkipFilterEngine "
    "SnapshotTrie TrieEngine",
    "skipfilter.fields": "Expression FieldFilter PartExplanation above all_of any_of at_least at_most below between from_json not_ "
    "one_of prefix present to_json",
    "skipfilter.spark": "BadInput BroadcastLimit Matching MissingJava PipelineError Workload as_if_online "
    "generate_sessions generate_updates match postings spark_session",
    "skipfilter.topics": "AMQP Grammar MQTT NATS",
}


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_these_and_each_has_a_docstring(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(PUBLIC[package].split())
    assert [name for name in module.__all__ if callable(public := getattr(module, name)) and not public.__doc__] == []


COST = re.compile(r"\bO\(|\b[Cc]osts?\b|\b[Tt]akes (?!no |in )")


@pytest.mark.parametrize("package", PUBLIC)
def test_each_public_method_of_the_library_says_what_it_costs(package: str) -> None:
    module = importlib.import_module(package)
    functions: list[Any] = []
    for public in (getattr(module, name) for name in module.__all__):
        if inspect.isfunction(public):
            functions.append(public)
        elif inspect.isclass(public) and not issubclass(public, Exception):
            functions += [
                member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                for name, member in vars(public).items()
                if not name.startswith("_") and (callable(member) or isinstance(member, (property, classmethod)))
            ]
    silent = [f"{each.__module__}.{each.__qualname__}" for each in functions if not COST.search(each.__doc__ or "")]
    assert silent == []
    assert functions


@pytest.mark.parametrize("package", [skipfilter, hub])
def test_every_public_name_exists_except_the_application_that_is_created_on_demand(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert name == "app" or hasattr(package, name)
    assert (Path(package.__file__).parent / "py.typed").exists()  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", PUBLIC)
@pytest.mark.processes
def test_the_library_imports_its_base_dependencies_only(package: str) -> None:
    script = f"import sys; before = set(sys.modules); import {package}; print(*set(sys.modules) - before)"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    # pyroaring is made with Cython, and NumPy reads how Python was built.
    packages = {name for name in packages if "cython" not in name and not name.startswith("_sysconfigdata")}
    arrays = {"numpy", "pyarrow"} if package == "skipfilter.bulk" else set()
    assert packages == {"skipfilter", "cachetools", "pyroaring", "sortedcontainers"} | arrays


@pytest.mark.parametrize("package", ["skipfilter.bulk", "skipfilter.spark"])
@pytest.mark.processes
def test_the_pipeline_is_imported_with_numpy_and_pyarrow_alone(package: str) -> None:
    present = {"numpy", "pyarrow", "cachetools", "pyroaring", "sortedcontainers", "skipfilter"}
    script = f"""if True:
        import sys

        sys.modules.update(dict.fromkeys({sorted(packages_distributions().keys() - present)}))
        import {package}

        print({package}.BadInput.__module__)
        try:
            print({package}.match.__module__)
        except ImportError as error:
            print(error)
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    needed = INSTALL.format(extra="spark")
    matcher = {
        "skipfilter.bulk": "skipfilter.bulk.matching",
        "skipfilter.spark": f"skipfilter.spark needs pyspark: {needed}",
    }
    assert ended.stdout.splitlines() == ["skipfilter.bulk.errors", matcher[package]]


@pytest.mark.parametrize(
    "statement", ["from hub import Client", "import hub.client", "from hub.verify.run import verify"]
)
@pytest.mark.processes
def test_a_client_loads_no_part_of_the_server(statement: str) -> None:
    script = f"import sys; {statement}; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    server = {
        "starlette",
        "uvicorn",
        "sse_starlette",
        "sqlite3",
        "redis",
        "typer",
        "pydantic",
        "hub.hub",
        "hub.settings",
    }
    assert server.isdisjoint(imported)


def test_each_public_name_of_the_hub_has_a_module() -> None:
    assert sorted(hub._MODULES) == hub.__all__
    with pytest.raises(AttributeError, match="'hub' has no attribute 'nothing'"):
        hub.nothing  # noqa: B018


def test_the_base_dependencies_are_three() -> None:
    base = [line for line in requires("skipfilter") or [] if "extra ==" not in line]
    assert [line.partition(">")[0] for line in base] == ["cachetools", "pyroaring", "sortedcontainers"]


def test_the_extra_for_spark_has_what_spark_connect_imports() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    assert any(line.startswith("pyspark[connect]") for line in project["optional-dependencies"]["spark"])
    connect = [line for line in requires("pyspark") or [] if 'extra == "connect"' in line]
    assert {"grpcio", "grpcio-status", "googleapis-common-protos"} <= {line.partition(">")[0] for line in connect}


# -- how to install what is missing

ROOT = Path(__file__).parents[1]


def test_pages_and_messages_install_extras_with_one_command() -> None:
    command = INSTALL.partition("[")[0]
    pages = [page for page in ROOT.glob("**/*.md") if not {".venv", "node_modules"} & set(page.parts)]
    sources = [*ROOT.glob("skipfilter/**/*.py"), *ROOT.glob("hub/**/*.py"), *ROOT.glob("examples/*.py")]
    found = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in pages + sources
        for line in file.read_text("utf-8").splitlines()
        if re.search(r"pip install \S*\[", line)
    ]
    assert [line for line in found if f"{command}[" not in line] == []
    assert len(found) >= 4


def test_the_command_is_the_same_with_and_without_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"skipfilter": "hub.__main__:main"}
