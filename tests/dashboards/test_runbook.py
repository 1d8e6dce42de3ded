"""The runbook has a section for every alert and every reason, and for nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from autoscaler.reasons import REASONS
from tests.dashboards.test_alerts import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"


def sections() -> dict[str, list[str]]:
    """Titles of the third level under those of the second, in their order."""
    found: dict[str, list[str]] = {}
    for level, title in re.findall(r"^(#{2,3}) (.+)$", PAGE.read_text(encoding="utf-8"), re.M):
        if level == "##":
            group = found.setdefault(title, [])
        else:
            group.append(title)
    return found


def test_every_alert_has_a_section_and_no_section_is_of_none():
    titles = [
        title for group in ("SLO", "Replicas", "Plan", "Control") for title in sections()[group]
    ]
    assert sorted(titles) == sorted(RULES)


def test_every_reason_has_a_section_under_its_action():
    found = sections()
    for action, reasons in REASONS.items():
        assert found[action.value] == [reason.value for reason in reasons]


def test_links_within_the_page_lead_somewhere():
    text = PAGE.read_text(encoding="utf-8")
    anchors = {title.lower() for title in re.findall(r"^#+ (.+)$", text, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
