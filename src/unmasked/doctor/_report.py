"""What the doctor found, and how it is told."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

from unmasked import museum

__all__ = ["Finding", "Inconclusive", "Report"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        check: What was asked of the target.
        cause: The slug of the mistake in the museum, or None where the museum shows none like it.
        told: What the target does, in a sentence.
        evidence: The smallest input that showed it, and by how much it was off.
        certain: Whether the mistake was proved, because it gives the target's own numbers; else it is the likeliest.
        also: Slugs of mistakes that would show in the same way.
    """

    check: str
    cause: str | None
    told: str
    evidence: str
    certain: bool = False
    also: tuple[str, ...] = ()

    @property
    def link(self) -> str | None:
        """Where the cause hangs in the museum, from the site's root."""
        return None if self.cause is None else museum.ENTRIES[self.cause].link

    @property
    def causes(self) -> tuple[str, ...]:
        """The cause, and those that would show in the same way."""
        return (*([self.cause] if self.cause else []), *self.also)


@dataclass(frozen=True)
class Inconclusive:
    """A check that was not decided.

    Attributes:
        check: What was to be asked.
        needs: What would decide it.
    """

    check: str
    needs: str


@dataclass(frozen=True)
class Report:
    """What holds of a target and what does not.

    Attributes:
        target: The target's name.
        findings: What is wrong, the surest first.
        cautions: What PyTorch's own functions do too, and may surprise; findings, with ``strict=True``.
        passed: The checks that hold.
        inconclusive: The checks that were not decided, and what they need.
        decided: Whether it was settled what it computes: it is attention of some kind, or a mistake was proved.
    """

    target: str
    findings: tuple[Finding, ...] = ()
    cautions: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    inconclusive: tuple[Inconclusive, ...] = ()
    decided: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def causes(self) -> tuple[str, ...]:
        """The slugs of all findings."""
        return tuple(finding.cause for finding in self.findings if finding.cause)

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return self.text()

    def text(self, *, color: bool = False) -> str:
        """Tell it in words.

        Args:
            color: Whether to color it for a terminal.
        """
        red, green, yellow, dim, off = ("\033[31m", "\033[32m", "\033[33m", "\033[2m", "\033[0m") if color else [""] * 5
        count = len(self.findings)
        verdict = f"{red}{count} finding{'s' if count > 1 else ''}" if count else f"{green}no finding"
        lines = [f"{self.target}: {verdict}{off}"]
        for mark, paint, each in [
            *(("x", red, finding) for finding in self.findings),
            *(("!", yellow, caution) for caution in self.cautions),
        ]:
            title = each.cause or "not in the museum"
            sure = "" if each.certain else " (likely)"
            lines += [f"{paint}{mark} {title}{sure}{off}: {each.told}", f"    {each.evidence}"]
            if each.also:
                lines.append(f"    it could also be {' or '.join(each.also)}")
            if each.link:
                lines.append(f"    {dim}{each.link}{off}")
        lines += [f"{yellow}?{off} {each.check}: {each.needs}" for each in self.inconclusive]
        if self.passed:
            lines.append(f"{green}+{off} holds: {', '.join(self.passed)}")
        wrap = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
        return "\n".join(textwrap.fill(line, 78, **wrap) for line in lines)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Tell it in plain dictionaries, for JSON."""
        told = [[asdict(each) | {"link": each.link} for each in group] for group in (self.findings, self.cautions)]
        return {
            "target": self.target,
            "ok": self.ok,
            "decided": self.decided,
            "findings": told[0],
            "cautions": told[1],
            "passed": list(self.passed),
            "inconclusive": [asdict(each) for each in self.inconclusive],
        }


@dataclass
class Notes:
    """A report while it is being written."""

    findings: list[Finding] = field(default_factory=list)
    cautions: list[Finding] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    inconclusive: list[Inconclusive] = field(default_factory=list)
    settled: bool = False  # equal to a reference of some kind

    @property
    def decided(self) -> bool:
        return self.settled or any(finding.certain for finding in self.findings)
