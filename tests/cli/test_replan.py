"""What is said where there is nothing to move."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from cli import replan, replan_report
from cluster.errors import UnavailableError
from rl_search.replan import Found, Worth
from serving.instance import Instance, Progress
from tests.serving.plans import plan


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path))
    return tmp_path


def test_without_a_service_it_says_so(home: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no service is running here\. Fix: `shardwise up`"):
        replan.command(plan=home / "plan.json")


def test_a_service_that_is_not_ready_is_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Instance.default().write(Progress(phase="starting", doing="loading the model"))
    monkeypatch.setattr(Instance, "head", lambda _: object())
    with pytest.raises(UnavailableError, match="the service is starting: loading the model"):
        replan.command(plan=home / "plan.json")


def printed(what: object) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_what_is_seen_stands_beside_what_was_planned() -> None:
    told = {
        "seen": {"prompt_tokens": 900.0, "output_tokens": 101.0, "requests_per_s": 2.0}
        | {"ttft_s": None, "tpot_s": None},
        "planned": {"prompt_tokens": 300.0, "output_tokens": 100.0, "requests_per_s": 0.0}
        | {"ttft_s": 0.25, "tpot_s": 0.01},
        "ratios": {"prompt_tokens": 3.0, "output_tokens": 1.01},
        "band": 1.5,
    }
    lines = {
        line.split("  ")[0]: line.split()
        for line in printed(replan_report.workload_table(told)).splitlines()
    }
    assert lines["prompt tokens"][-4:] == ["300", "900", "3.00", "yes"]
    assert lines["output tokens"][-3:] == ["100", "101", "1.01"]
    assert lines["requests/s"][-4:] == ["?", "2", "not", "compared"]
    assert lines["TPOT ms"][-4:] == ["10.0", "?", "not", "compared"]


def test_a_layout_that_misses_the_bounds_says_so() -> None:
    old = Worth(layout="TP1", devices=1, ttft_s=3.0, tpot_s=0.1, goodput_rps=0.0)
    new = Worth(layout="TP2", devices=2, ttft_s=1.0, tpot_s=0.05, goodput_rps=2.0)
    found = Found(plan=plan(tp=2), old=old, new=new)
    text = printed(replan_report.layouts_table(plan(tp=1, initial=3), found))
    assert "misses the bounds" in text
    assert "1 x 3" in text


def test_status_tells_of_a_move_and_a_proposal() -> None:
    move = {"old": "TP1 x2", "new": "TP2 x1", "phase": "rolled back", "reason": "no answer"}
    move |= {"steps": [[90.0, "start 1"], [95.0, "going back"]]}
    proposal = {"time_s": 40.0, "verdict": "TP2 meets the bounds", "reason": "prompts are longer"}
    lines = list(
        replan_report.status_lines(
            {"move": move, "proposal": proposal, "searching": False}, now_s=100.0
        )
    )
    assert lines[0] == "move        TP1 x2 to TP2 x1: rolled back"
    assert "no answer" in lines[1]
    assert lines[3].split(maxsplit=3) == ["5", "s", "ago", "going back"]
    assert "60 s ago" in lines[4]
