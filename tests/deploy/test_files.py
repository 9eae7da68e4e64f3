"""The files of examples/deploy and .github that no test runs: each is checked against
the schema of its format, and by the tools that there are.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.settings import Settings
from tests.hub.proxies import DEPLOY
from tests.installation import ROOT, VERSION

pytestmark = [pytest.mark.deploy, pytest.mark.processes]

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
KUBERNETES: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))


def check(*command: str | Path) -> str:
    """Run a tool of this environment or system; it must find no fault."""
    tool, *arguments = map(str, command)
    own = Path(sys.executable).with_name(tool)
    done = subprocess.run(
        [own if own.exists() else tool, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_workflows_are_valid_and_have_no_known_weakness() -> None:
    assert len(WORKFLOWS) == 3
    check("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    check("zizmor", "--offline", "--no-progress", *WORKFLOWS)


def test_compose_is_valid() -> None:
    check("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_the_manifest_is_valid_and_its_parts_fit_together() -> None:
    check("kubernetes-validate", "--strict", DEPLOY / "kubernetes.yaml")
    deployment, budget, service = KUBERNETES
    pod = deployment["spec"]["template"]
    assert budget["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == pod["metadata"]["labels"]
    [hub] = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in hub["ports"]}
    assert hub["args"][-1] == str(ports["http"])
    settings = {each["name"]: each["value"] for each in hub["env"]}
    assert settings["HUB_METRICS_PORT"] == str(ports["metrics"])
    # A pod is killed only after it was taken out of the service, and has ended its streams.
    pause = hub["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= pause + int(settings["HUB_DRAIN"]) + 10
    assert hub["image"].endswith(f":{VERSION}")
    names = {f"HUB_{name.upper()}" for name in Settings.model_fields}
    assert names >= {name for name in settings if name.startswith("HUB_")}


def test_the_unit_is_valid_and_gives_the_service_few_rights(tmp_path: Path) -> None:
    unit = (DEPLOY / "hub@.service").read_text("utf-8")
    # The tool insists on the program, which is not there.
    file = tmp_path / "hub@3000.service"
    file.write_text(unit.replace("/opt/hub/bin/skipfilter", "/bin/true"))
    assert check("systemd-analyze", "verify", file) == ""
    report = check("systemd-analyze", "security", "--offline=true", file)
    exposure = re.search(r"exposure level for hub@3000.service: ([\d.]+)", report)
    assert exposure is not None
    assert float(exposure[1]) < 2
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) >= Settings.model_fields["drain"].default + 10
