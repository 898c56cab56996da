"""Findings of `querylect doctor`, and their output as text or JSON."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "missing", "needed", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    area: str
    """machine, accelerator, packages, cluster, accounts, config or gpu."""
    name: str
    state: State
    """missing: not there, and nothing checked needs it; needed: not there, and the config needs it; failed: it does not
    work."""
    detail: str
    remedy: str = ""
    """What to do about it, as a command where there is one."""


def as_text(findings: list[Finding]) -> str:
    """The findings as lines for people, a heading for each kind."""
    width = max(len(finding.name) for finding in findings)
    lines: list[str] = []
    heading = ""
    for finding in findings:
        if finding.area != heading:
            heading = finding.area
            lines.append(f"{'' if not lines else chr(10)}{heading}")
        lines.append(f"  {finding.state:<8}{finding.name:<{width}}  {finding.detail}")
        if finding.remedy:
            lines.append(f"  {'':<8}{'':<{width}}  → {finding.remedy}")
    for state, meaning in (("needed", "missing, and the config needs it"), ("failed", "failed")):
        if names := [finding.name for finding in findings if finding.state == state]:
            lines += ["", f"{meaning}: {', '.join(names)}"]
    return "\n".join(lines)


def ready(findings: list[Finding]) -> bool:
    """Whether nothing is needed and nothing failed."""
    return all(finding.state in ("ok", "missing") for finding in findings)


def as_data(findings: list[Finding]) -> dict[str, Any]:
    """The same for programs."""
    return {"ready": ready(findings), "findings": [asdict(finding) for finding in findings]}
