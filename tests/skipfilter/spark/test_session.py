"""skipfilter.spark.session: the library does not import Spark, and a missing Java is
one sentence.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pyspark
import pytest

from skipfilter.spark.errors import MissingJava, MissingMaster, MissingSpark
from skipfilter.spark.session import _master, persisted, require_java, require_master, require_spark, spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize("package", ["skipfilter", "skipfilter.engines", "hub", "hub.http.embedding", "hub.cli.serve"])
@pytest.mark.processes
def test_importing_the_library_or_the_hub_imports_no_spark(package: str) -> None:
    heavy = "{'pyspark', 'pandas', 'pyarrow', 'numpy', 'matplotlib'}"
    code = f"import sys, {package}; found = {heavy} & sys.modules.keys(); sys.exit(', '.join(found) or 0)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_without_java_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        MissingJava, match=r"^Spark needs Java 17 or newer, but there is no java on the path: on Debian,"
    ):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingJava, match=f"there is no java in JAVA_HOME={tmp_path}"):
        require_java()


def test_a_spark_home_without_the_spark_of_this_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    require_spark()
    for home in ("", str(tmp_path)):
        monkeypatch.setenv("SPARK_HOME", home)
        with pytest.raises(
            MissingSpark, match=rf"^SPARK_HOME is '{home}', and there is no Spark: unset SPARK_HOME to use "
        ):
            require_spark()
    for name in ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "MASTER", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(MissingSpark, match=r"^SPARK_HOME is "):  # before Java starts
        spark_session("test")
    (tmp_path / "bin").mkdir()
    (tmp_path / "jars").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    require_spark()
    jar = tmp_path / "jars" / f"spark-core_2.13-{pyspark.__version__}.jar"
    jar.touch()
    require_spark()
    jar.rename(jar.with_name("spark-core_2.12-3.5.8.jar"))
    with pytest.raises(MissingSpark, match=r"and has Spark 3\.5\.8: unset SPARK_HOME"):
        require_spark()


def test_a_cluster_from_spark_defaults_gets_no_local_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert _master({}) == "local"
    for text, master in [
        ("spark.master  spark://there:7077", "spark://there:7077"),
        ("spark.master=local[2]", "local[2]"),
        ("#", "local"),
    ]:
        (tmp_path / "spark-defaults.conf").write_text(f"# of this cluster\nspark.ui.enabled false\n{text}\n")
        assert _master({}) == master
    assert _master({"spark.master": "local[1]"}) == "local[1]"


def test_a_master_that_does_not_respond_is_reported_at_once() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(MissingMaster, match=rf"^no Spark master responds at spark://{nobody}: .*refused"):
            require_master(f"spark://{nobody}")
        with socket.create_server(("127.0.0.1", 0)) as server:
            require_master(f"spark://{nobody},127.0.0.1:{server.getsockname()[1]}")
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
            require_master(f"spark://[::1]:{server.getsockname()[1]}")


@pytest.mark.processes
def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for version, accepted in [("11.0.2", False), ("1.8.0_392", False), ("17.0.9", True), ("21", True)]:
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
        java.chmod(0o755)
        if accepted:
            require_java()
        else:
            with pytest.raises(MissingJava, match=f'{java} is openjdk version "{version}"'):
                require_java()


def test_times_are_utc_on_every_machine(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_persisted_tables_have_as_few_partitions_as_their_rows_need(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "50")
    few = persisted(spark.range(100).selectExpr("id % 7 AS remainder").groupBy("remainder").count())
    try:
        assert few.rdd.getNumPartitions() == 1
        assert few.count() == 7
    finally:
        few.unpersist()
        spark.conf.set("spark.sql.shuffle.partitions", "2")
