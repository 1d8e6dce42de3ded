"""What did a search find, how did it get there, and what to do with it? One HTML page.

The page carries its script and opens offline. Several runs of one question share their figures.
Every string of a run document is escaped: names come from users.
Invariant: nothing is decided here; what a document leaves open is said to be open.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.search_figures import (
    LEAST_REGRET,
    Run,
    confidence_figure,
    curve_figure,
    pareto_figure,
    regret_figure,
    runs_of,
)
from cluster.costmodel.sharding import RESIDUAL
from cluster.errors import InputError
from rl_search.pool_checks import DIMS_NOT_SERVED, DP_NOT_SERVED

SCHEMA = 1
_KEYS = (
    *("schema", "model", "cluster", "method", "fidelity", "seed", "budget", "calls", "asked"),
    *("seconds", "unit", "space", "best", "heuristic", "exact", "curve", "confidence", "pareto"),
)
_ONE_QUESTION = ("model", "cluster", "fidelity", "unit")
_NEAR = (0.05, 0.01, 0.001)
_JUDGES = {"cost-model": "the cost model", "goodput": "goodput"}
# Nothing of a page leaves the machine: no button that shares charts.
_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
td, th { border-bottom: 1px solid #ddd; padding: .25rem .9rem .25rem 0; text-align: left;
  vertical-align: top; } th { font-weight: 600; }
td.n { font-variant-numeric: tabular-nums; }
pre { background: #f5f5f5; padding: .7rem 1rem; overflow-x: auto; }
.lead { font-size: 1.1rem; } .note { color: #666; }
td:first-child { white-space: nowrap; }
"""


def write_report(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Write the page of one run, or of several runs of one question.

    Raises InputError for no runs, documents of another schema or of different questions, and where
    `path` cannot be written.
    """
    _check(runs)
    text = _page(runs_of(runs))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"the report {path} cannot be written ({error}).") from error


def _check(runs: Sequence[Mapping[str, Any]]) -> None:
    if not runs:
        raise InputError("a report needs at least one run.")
    for run in runs:
        if run.get("schema") != SCHEMA:
            raise InputError(
                f"a run of schema {run.get('schema')!r} cannot be read, only {SCHEMA}. Fix: search "
                "again with this version."
            )
        missing = [key for key in _KEYS if key not in run]
        if missing:
            raise InputError(f"a run document lacks {', '.join(missing)}. Fix: search again.")
    for key in _ONE_QUESTION:
        values = list(dict.fromkeys(str(run[key]) for run in runs))
        if len(values) > 1:
            raise InputError(
                f"runs of different questions share no report: {key} is {' and '.join(values)}. "
                "Fix: report them one by one."
            )


def _page(runs: Sequence[Run]) -> str:
    from plotly.offline import get_plotlyjs

    question = runs[0].document
    title = f"Strategy search: {_escaped(question['model'])} on {_escaped(question['cluster'])}"
    sections = "\n".join(_sections(runs))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>'
        f"\n<style>{_STYLE}</style>\n<script>{get_plotlyjs()}</script>\n</head>\n<body>\n"
        f"<h1>{title}</h1>\n{sections}\n</body>\n</html>\n"
    )


def _sections(runs: Sequence[Run]) -> Iterator[str]:
    yield f'<p class="lead">{_asked(runs[0].document)}</p>'
    yield from (f'<p class="lead">{_found(run)}</p>' for run in runs)
    yield "<h2>Best value over calls</h2>"
    if any(run.curve for run in runs):
        yield _drawn(curve_figure(runs), "curve")
        yield from _regret(runs)
    else:
        yield _note("Nothing that was tried satisfies everything: there is no curve to draw.")
    yield from _confidence(runs)
    yield from _pareto(runs)
    yield "<h2>The strategy</h2>"
    yield from _strategies(runs)
    yield "<h2>Facts</h2>"
    yield _facts(runs)
    yield "<h2>How to serve it</h2>"
    yield from _serving(runs)


def _asked(question: Mapping[str, Any]) -> str:
    space = question["space"]
    return (
        f"Asked: the strategy with the most {_escaped(question['unit'])} for "
        f"<b>{_escaped(question['model'])}</b> on <b>{_escaped(question['cluster'])}</b>, judged "
        f"by {_escaped(_judge(question))}, among {_count(space['size'])} strategies "
        f"({_count(space['grid'])} combinations before masks)."
    )


def _judge(document: Mapping[str, Any]) -> str:
    fidelity = str(document["fidelity"])
    return _JUDGES.get(fidelity, fidelity)


def _found(run: Run) -> str:
    document, best = run.document, run.document["best"]
    calls, who = f"{document['calls']:,} calls", f"<b>{_escaped(run.label)}</b>"
    if best is None:
        return f"{who} found nothing that satisfies everything in {calls}."
    text = (
        f"{who} found {_value(best['value'])} {_escaped(document['unit'])} after "
        f"{best['calls']:,} of {calls}: <b>{_escaped(best['layout'])}</b>"
    )
    heuristic, exact = document["heuristic"], document["exact"]
    if heuristic is not None:
        text += (
            f"; {_apart(best['value'] / heuristic['value'])} the heuristic "
            f"({_escaped(heuristic['layout'])}, {_value(heuristic['value'])})"
        )
    if exact is not None:
        text += (
            f"; {best['value'] / exact['value']:.2%} of the exact optimum "
            f"({_escaped(exact['layout'])}, {_value(exact['value'])}, the best of "
            f"{_count(exact['strategies'])} strategies)"
        )
    return f"{text}."


def _regret(runs: Sequence[Run]) -> Iterator[str]:
    if all(run.exact is None for run in runs):
        yield _note("The exact optimum is not known, so neither is how far below it these are.")
        return
    yield "<h2>How far below the exact optimum</h2>"
    yield _drawn(regret_figure(runs), "regret")
    least = [run.regret(run.best_value) for run in runs if run.best_value is not None]
    if any(regret is not None and regret < LEAST_REGRET for regret in least):
        yield _note(f"What is at the optimum is drawn at {LEAST_REGRET:.4%}.")


def _confidence(runs: Sequence[Run]) -> Iterator[str]:
    sure = [(index, run) for index, run in enumerate(runs) if run.document["confidence"]]
    if not sure:
        return
    yield "<h2>How sure the policy was</h2>"
    yield _note(
        "The largest probability of each choice, over calls. A red line: the next chunk of calls "
        "begins."
    )
    for index, run in sure:
        if len(runs) > 1:
            yield f"<h3>{_escaped(run.label)}</h3>"
        yield _drawn(confidence_figure(run), f"confidence-{index}")


def _pareto(runs: Sequence[Run]) -> Iterator[str]:
    yield "<h2>Throughput against interactivity</h2>"
    if any(run.document["pareto"]["points"] for run in runs):
        yield _drawn(pareto_figure(runs), "pareto")
        yield _note("Of what was tried and satisfies everything, what nothing else tried beats.")
    else:
        yield _note("Nothing that was tried satisfies everything.")


def _strategies(runs: Sequence[Run]) -> Iterator[str]:
    """What was chosen in words, and head by head."""
    found = [run for run in runs if run.document["best"] is not None]
    if not found:
        yield _note("None that satisfies everything.")
        return
    for run in found:
        best = run.document["best"]
        yield f"<h3>{_escaped(run.label)}: {_escaped(best['layout'])}</h3>"
        if best["sentences"]:
            listed = "".join(f"<li>{_escaped(text)}</li>" for text in best["sentences"])
            yield f"<ul>{listed}</ul>"
    yield _table(found, [dict(_choices(run)) for run in found])
    if any(RESIDUAL in run.document["best"]["choices"] for run in found):
        yield _note(
            "Operators: 1 along the output dimension of their weights, 0 along the input, - whole "
            f"on every rank; of attention_core 1 is by heads, of {RESIDUAL} 0 is by tokens."
        )


def _choices(run: Run) -> Iterator[tuple[str, str]]:
    for head, choice in run.document["best"]["choices"].items():
        yield head, str(choice).removeprefix(f"{head} ")


def _table(runs: Sequence[Run], columns: Sequence[Mapping[str, str]]) -> str:
    """A column per run, a row per name that any of them has."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    head = "".join(f"<th>{_escaped(run.label)}</th>" for run in runs)
    rows = "".join(
        f"<tr><td>{_escaped(name)}</td>"
        + "".join(f'<td class="n">{_escaped(column.get(name, "-"))}</td>' for column in columns)
        + "</tr>"
        for name in names
    )
    return f"<table><tr><th></th>{head}</tr>{rows}</table>"


def _facts(runs: Sequence[Run]) -> str:
    return _table(runs, [dict(_facts_of(run)) for run in runs])


def _facts_of(run: Run) -> Iterator[tuple[str, str]]:
    document, best = run.document, run.document["best"]
    calls, asked = int(document["calls"]), int(document["asked"])
    yield "space", str(document["space"]["described"])
    yield "judged by", _judge(document)
    yield "budget", f"{document['budget']:,} calls"
    yield "calls", f"{calls:,}"
    yield "asked for", f"{asked:,} ({asked - calls:,} answered from memory)"
    yield "seconds", f"{document['seconds']:,.1f}"
    yield f"best {document['unit']}", "-" if best is None else _value(best["value"])
    yield "found after", "-" if best is None else f"{best['calls']:,} calls"
    for key, name in (("heuristic", "heuristic"), ("exact", "exact optimum")):
        other = document[key]
        if other is not None and best is not None:
            yield f"against the {name}", f"{best['value'] / other['value'] - 1.0:+.2%}"
    if document["heuristic"] is not None:
        yield "calls of the heuristic", f"{document['heuristic']['calls']:,}"
    if run.exact is not None:
        for near in _NEAR:
            yield f"calls to within {near:.1%} of the optimum", _calls_to(run, near)


def _calls_to(run: Run, near: float) -> str:
    for calls, value in run.curve:
        regret = run.regret(value)
        if regret is not None and regret <= near:
            return f"{calls:,}"
    return "not reached"


def _serving(runs: Sequence[Run]) -> Iterator[str]:
    found = [run for run in runs if run.best_value is not None]
    if not found:
        yield _note("There is nothing to serve.")
        return
    run = max(found, key=lambda each: each.best_value or 0.0)
    plan = run.document["best"]["plan"]
    if plan is None:
        yield _note(f"The run {run.label} made no plan file.")
        return
    text = json.dumps(plan, indent=2, ensure_ascii=False)
    data = base64.b64encode(text.encode()).decode()
    yield (
        f"<p>The plan of {_escaped(run.label)}: "
        f'<a download="plan.json" href="data:application/json;base64,{data}">plan.json</a></p>'
    )
    yield "<pre>shardwise up plan.json</pre>"
    yield from (_note(f"Note: {note}.") for note in _not_served(plan))
    yield f"<details><summary>what it says</summary><pre>{_escaped(text)}</pre></details>"


def _not_served(plan: Mapping[str, Any]) -> Iterator[str]:
    """What of the plan `shardwise up` leaves out or refuses."""
    layouts = [pool.get("layout", {}) for pool in plan.get("pools", ())]
    if any(layout.get("dims") for layout in layouts):
        yield DIMS_NOT_SERVED
    if any(layout.get("dp", 1) > 1 for layout in layouts):
        yield DP_NOT_SERVED


def _drawn(figure: Any, name: str) -> str:
    made = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        default_height=f"{figure.layout.height}px",
        config=_CONFIG,
    )
    return str(made)


def _note(text: str) -> str:
    return f'<p class="note">{_escaped(text)}</p>'


def _escaped(text: object) -> str:
    return html.escape(str(text))


def _value(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000.0 else f"{value:,.4g}"


def _count(count: float) -> str:
    return f"{count:,}" if count < 1_000_000 else f"{count:.3g}"


def _apart(ratio: float) -> str:
    return f"{abs(ratio - 1.0):.2%} {'above' if ratio >= 1.0 else 'below'}"
