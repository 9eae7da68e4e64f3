"""The Spark session of a job.

Java, SPARK_HOME and the master are checked before it starts, and the Python of its
executors after.

spark-submit, spark-defaults.conf, SPARK_REMOTE or `conf` set where Spark runs and what
it may use.  By default Spark runs on all processors of this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.utils import is_remote

from skipfilter.spark.errors import MissingJava, MissingMaster, MissingSpark, UnfitExecutors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

JAVA: Final = 17
"""The oldest version of Java on which Spark runs."""

MICROSECONDS: Final = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
"""The setting that makes Spark write timestamps to Parquet as microseconds in UTC."""

_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
"""Settings for Spark on this machine, which no other machine needs to reach."""


def spark_session(app: str, conf: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """Return the session of this process, or start one with the settings `conf`.

    Takes some seconds if it starts Java.

    Its time zone is UTC, and it writes timestamps to Parquet as microseconds in UTC:
    Spark's default has no zone for most other readers.  `spark.pyspark.python` has the
    same effect as with spark-submit.  Raises MissingJava if Spark needs Java on this
    machine and finds none, MissingSpark if SPARK_HOME is wrong, and MissingMaster if no
    standalone master responds.
    """
    builder = SparkSession.builder.appName(app)
    remote = conf.get("spark.remote") or os.environ.get("SPARK_REMOTE", "")
    if "spark.pyspark.python" in conf:  # otherwise only spark-submit reads it
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    master = _master(conf)
    if master or remote.startswith("local"):
        require_spark()
    if remote.startswith("local") or master.startswith("local"):
        require_java()
        # Otherwise the workers run the first `python3` on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if not remote:
            builder = builder.config(map=dict(_LOCAL))
    elif master.startswith("spark://"):  # the driver runs here, in Java
        require_java()
        require_master(master)
    session = builder.config(map=dict(conf)).getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set(*MICROSECONDS)
    return session


def persisted(frame: DataFrame) -> DataFrame:
    """Return `frame.persist()`, with no more partitions than its rows need.

    Without the setting, Spark makes 200.
    """
    with setting(frame.sparkSession, "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning", "true"):
        return frame.persist()


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Have `value` for a setting of the session during a `with` statement."""
    before = spark.conf.get(name)
    assert before is not None  # every setting that is used here has a default
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def forget(frame: DataFrame) -> None:
    """Release a persisted frame.

    Does nothing if Spark has ended, so that the error that ended it is the one to see.
    """
    with suppress(PySparkException, Py4JError, ConnectionError):
        frame.unpersist()


def _master(conf: Mapping[str, str]) -> str:
    """Return the master of the Spark that this process starts.

    It is "" over Spark Connect, and if spark-submit has started Spark.
    """
    if "SPARK_REMOTE" in os.environ or "spark.remote" in conf or "PYSPARK_GATEWAY_PORT" in os.environ:
        return ""
    return conf.get("spark.master") or os.environ.get("MASTER") or _default_master()


def _default_master() -> str:
    """Return the master in spark-defaults.conf, or "local" if it has none."""
    home = os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent)
    file = Path(os.environ.get("SPARK_CONF_DIR", Path(home) / "conf")) / "spark-defaults.conf"
    if not file.is_file():
        return "local"
    masters = re.findall(r"^[ \t]*spark\.master[ \t=:]+(\S+)", file.read_text("utf-8"), re.MULTILINE)
    return str(masters[-1]) if masters else "local"  # the last one counts


def require_java() -> None:
    """Raise MissingJava if this machine has no Java, or one that is too old for Spark.

    It is the Java in JAVA_HOME if that is set, otherwise the first one on the path.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(Path(home) / "bin" / "java" if home else "java")
    if java is None:
        raise MissingJava(f"there is no {'java in JAVA_HOME=' + home if home else 'java on the path'}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < JAVA:
        raise MissingJava(f"{java} is {output.splitlines()[0] if output else 'not Java'}")


def require_spark() -> None:
    """Raise MissingSpark if SPARK_HOME is set, and names no Spark of PySpark's version.

    Without the variable, Spark is the one that PySpark has in its own package.
    """
    home = os.environ.get("SPARK_HOME")
    if home is None:
        return
    remedy = f"unset SPARK_HOME to use the Spark that is in PySpark {pyspark.__version__}"
    if not Path(home, "bin", "spark-submit").is_file():
        raise MissingSpark(f"SPARK_HOME is {home!r}, and there is no Spark: {remedy}")
    for jar in Path(home, "jars").glob("spark-core_*.jar"):
        version = jar.stem.partition("-core_")[2].partition("-")[2]
        if version.split(".")[:2] != pyspark.__version__.split(".")[:2]:
            raise MissingSpark(f"SPARK_HOME is {home!r}, and has Spark {version}: {remedy}")


def require_master(master: str) -> None:
    """Raise MissingMaster if no address in `spark://HOST:PORT,…` accepts connections.

    Spark itself would try for a minute or two, and then stop without a reason.
    """
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, ValueError) as error:
            reason = error
        else:
            return
    raise MissingMaster(f"no Spark master responds at {master}: {reason}")


def runs_elsewhere(spark: SparkSession) -> bool:
    """Return whether workers may be on other machines, and so have another Python."""
    return is_remote() or not (spark.conf.get("spark.master") or "").startswith("local")


def compare_executors(spark: SparkSession) -> str:
    """Return how the Python of the executors differs from this one, or "".

    Compares the versions of Python and of the packages that the jobs need.  Runs one
    small job, on at least one executor.  Raises UnfitExecutors if a package is missing
    there.
    """

    # A nested function is pickled by value, and one of a module by name.  The executor
    # may not have this module.
    def python(_: object) -> dict[str, str]:
        import platform
        import sys
        from importlib import metadata, util

        found = {"executable": sys.executable, "python": platform.python_version()}
        modules = {"ada-url": "ada_url", "google-re2": "re2"}
        for name in (
            "skipfilter", "ada-url", "cachetools", "google-re2", "numpy", "pandas", "pyarrow", "pyroaring",
            "sortedcontainers", "typer",
        ):  # fmt: skip
            if util.find_spec(modules.get(name, name)) is not None:
                try:
                    found[name] = metadata.version(name)
                except metadata.PackageNotFoundError:  # the package is in a zip file
                    found[name] = "of no version"
        return found

    here, ask = python(None), F.udf(python, "map<string,string>", useArrow=False)  # Arrow may be missing
    differences = {}
    for [there] in spark.range(100).select(ask("id")).collect():
        run = f"the executors run {there['executable']} ({there['python']})"
        there = {"ada-url": "none", "google-re2": "none"} | there  # needed only for URL Patterns
        if missing := here.keys() - there.keys():
            raise UnfitExecutors(
                f"{run} and have no {', '.join(sorted(missing))}: set spark.pyspark.python, or pack the environment "
                "(skipfilter/spark/README.md, On a cluster)"
            )
        for name in here.keys() - {"executable"}:
            if there[name] != here[name]:
                differences[name] = f"{name} {there[name]} rather than {here[name]}"
    return f"{run} with {', '.join(sorted(differences.values()))}" if differences else ""
