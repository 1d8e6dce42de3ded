"""The base install plans: the command line loads nothing of what serving needs, and is quick."""

import subprocess
import sys
from pathlib import Path

# What takes long to import, in any install: commands that need it import it themselves.
SLOW = ("scipy", "matplotlib", "plotly", "statsmodels")
HEAVY = ("ray", "torch", "vllm", "transformers", "fastapi", "prometheus_client")


def test_the_command_line_imports_neither_what_serving_needs_nor_what_takes_long() -> None:
    check = f"import sys, cli.main; print([m for m in {(*HEAVY, *SLOW)!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", check],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"
