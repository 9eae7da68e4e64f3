"""The Spark session of a job: what is to be had before one begins, and no more.

Where Spark runs and what it may use is said outside: by spark-submit, spark-defaults.conf, SPARK_REMOTE, or
`conf`.  Where nothing is said, it runs in this process' own machine on all its processors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql import SparkSession

from skipfilter.spark.errors import MissingJava

if TYPE_CHECKING:
    from collections.abc import Mapping

JAVA: Final = 17
"""The oldest Java that Spark runs on."""

_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
"""For Spark in this process' own machine, which nobody else need reach."""


def spark_session(app: str, conf: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """The session that there is, or a new one with the settings `conf`, in UTC.

    Raises MissingJava where a Java is needed here and there is none.
    """
    builder = SparkSession.builder.appName(app)
    remote = conf.get("spark.remote") or os.environ.get("SPARK_REMOTE", "")
    if remote.startswith("local") or _starts_here(conf):
        require_java()
        # Else the workers are whatever `python3` is on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if not remote:
            builder = builder.config(map=dict(_LOCAL))
    session = builder.config(map=dict(conf)).getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def _starts_here(conf: Mapping[str, str]) -> bool:
    """Whether Spark is to be started by this process, to run on its machine."""
    if "SPARK_REMOTE" in os.environ or "spark.remote" in conf or "PYSPARK_GATEWAY_PORT" in os.environ:
        return False
    return (conf.get("spark.master") or os.environ.get("MASTER") or _default_master()).startswith("local")


def _default_master() -> str:
    """What spark-defaults.conf says, where Spark looks for it; local where that says nothing."""
    home = os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent)
    file = Path(os.environ.get("SPARK_CONF_DIR", Path(home) / "conf")) / "spark-defaults.conf"
    if not file.is_file():
        return "local"
    said = re.findall(r"^[ \t]*spark\.master[ \t=:]+(\S+)", file.read_text("utf-8"), re.MULTILINE)
    return str(said[-1]) if said else "local"


def require_java() -> None:
    """Raise MissingJava unless there is a Java that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(Path(home) / "bin" / "java" if home else "java")
    if java is None:
        raise MissingJava(f"there is no {'java in JAVA_HOME=' + home if home else 'java on the path'}")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < JAVA:
        raise MissingJava(f"{java} is {told.splitlines()[0] if told else 'no Java'}")
