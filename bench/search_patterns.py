"""Do article A's three patterns, and its figure on utilisation, hold in our exact optimum?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bench.search_cases import cases
from bench.search_runs import question_of
from rl_search.dims_gains import gains
from rl_search.exact import evaluate, ranked
from rl_search.patterns import at_context, findings
from rl_search.question import Priority
from rl_search.words import sentences

SHORT = (2048, 1024)


def patterns_part(*, quick: bool) -> dict[str, Any]:
    """Print and return what is found on every case that an exact answer takes seconds for."""
    made: dict[str, Any] = {}
    for case in [case for case in cases() if case.devices <= 64][: 1 if quick else None]:
        long = question_of(case)
        found = evaluate(long)
        best = ranked(found, Priority.THROUGHPUT, top=1)
        print(f"\n{case.name}")
        if not best:
            print("  nothing satisfies the question")
            continue
        layout = found.table.row(best[0])
        words = sentences(case.model, layout, gained=gains(long, layout)) if layout.dims else ()
        for sentence in (layout.describe(), *words):
            print(f"  {sentence}")
        short = evaluate(at_context(long, isl=SHORT[0], osl=SHORT[1]))
        told = findings(found, short, Priority.THROUGHPUT)
        for finding in told:
            print(
                f"  [{finding.name}] {finding.claim}\n"
                f"      ours: {finding.ours}. {finding.sentence}"
            )
        made[case.name] = {
            "layout": layout.describe(),
            "sentences": list(words),
            "findings": [asdict(finding) for finding in told],
        }
    return made
