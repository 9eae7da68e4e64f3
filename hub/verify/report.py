"""The plan of a run, its progress, and its findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hub.verify.checker import KINDS, Findings

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from hub.verify.client import Node

# -- publishers and clients


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a run."""

    urls: Sequence[str]
    token: str | None = None
    clients: int = 50
    publishers: int = 2
    """For each node."""
    rate: float = 50.0
    """Updates a second, by all publishers together."""
    seconds: float = 10.0
    churn: float = 3.0
    """Mean seconds between two disconnections of a client."""
    patience: float = 30.0
    """Seconds that the clients have to reach the last update."""
    private: float = 0.0
    """The share of private updates."""
    may_lose: bool = False
    seed: int = 0


class Progress(NamedTuple):
    """The counts of a run so far."""

    elapsed: float
    published: int
    refused: int
    received: int
    reconnections: int

    def __str__(self) -> str:
        return (
            f"{self.published:,} published, {self.refused:,} refused, {self.received:,} received, "
            f"{self.reconnections:,} reconnections"
        )


# -- the report


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a run, as JSON or as text."""

    plan: Plan
    run: str
    nodes: list[Node]
    progress: Progress
    latencies: Counter[int]
    findings: Findings

    @property
    def violations(self) -> int:
        """The number of violations; without lost updates if the plan allows them."""
        return self.findings.violations(may_lose=self.plan.may_lose)

    def latency(self, share: float) -> float | None:
        """Return a quantile of the latencies in ms; None if nothing was received."""
        left = share * self.latencies.total()
        for tenths in sorted(self.latencies):
            left -= self.latencies[tenths]
            if left <= 0:
                return tenths / 10
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object for JSON."""
        return {
            "run": self.run,
            "seed": self.plan.seed,
            "seconds": round(self.progress.elapsed, 3),
            "clients": self.plan.clients,
            "received": self.progress.received,
            "reconnections": self.progress.reconnections,
            "nodes": [
                {
                    "url": node.url,
                    "acknowledged": node.acknowledged,
                    "refused": dict(node.refused),
                    "uncertain": node.uncertain,
                    "seconds_without_service": round(node.without_service, 3),
                }
                for node in self.nodes
            ],
            "latency_ms": {name: self.latency(share) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
            "announced": {"gaps": self.findings.gaps, "missed": self.findings.missed},
            "violations": {
                kind: {
                    "count": self.findings.counts[kind],
                    "examples": [example._asdict() for example in self.findings.examples[kind]],
                }
                for kind in KINDS
            },
            "may_lose": self.plan.may_lose,
            "ok": not self.violations,
        }

    def __str__(self) -> str:
        progress, findings = self.progress, self.findings
        latency = ", ".join(f"{name} {ms} ms" for name, ms in self.to_json()["latency_ms"].items() if ms is not None)
        lines = [
            f"run             {self.run}, seed {self.plan.seed}, {progress.elapsed:.1f} s",
            f"clients         {self.plan.clients}, which received {progress.received:,} events and reconnected "
            f"{progress.reconnections:,} times",
            f"latency         {latency or 'unknown'}",
            f"announced gaps  {findings.gaps:,}, in which {findings.missed:,} updates were missed",
            "",
            "acknowledged  refused  uncertain  longest without service",
        ]
        for node in self.nodes:
            why = ", ".join(f"{reason}: {count}" for reason, count in node.refused.items())
            lines.append(
                f"{node.acknowledged:>12,}  {node.refused.total():>7,}  {node.uncertain:>9,}  "
                f"{node.without_service:>21.2f} s  {node.url}" + (f"  ({why})" if why else "")
            )
        lines.append("")
        for kind in KINDS:
            note = "  (the history may lose updates)" if kind == "lost" and self.plan.may_lose else ""
            lines.append(f"{kind:<14}{findings.counts[kind]:>7,}{note}")
            for client, position, what in findings.examples[kind]:
                where = f"{client}, after {position:,} events: " if position is not None else ""
                lines.append(f"    {where}{what}")
        return "\n".join([*lines, "", f"{self.violations:,} violations" if self.violations else "All is well."])
