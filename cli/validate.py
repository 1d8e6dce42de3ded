"""`shardwise validate`: how far are our predictions from measured serving runs?

Predicts every run of a CSV file, writes `id,ttft_ms,tpot_ms`, and where the file holds measured
times says how large the errors are, how well layouts are ranked, and what picks within a latency
bound would have cost; beside another predictor's answers on the same rows, if they are given.
Exit code 0: done. 1: no run could be predicted. 2: a file or model cannot be read.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from cli.console import out
from cli.validate_report import (
    Report,
    as_json,
    print_answers,
    print_decisions,
    print_errors,
)
from cluster.calibration.columns import Times, columns_of, times
from cluster.calibration.evaluation import Answers, Predict, answers, evaluate
from cluster.calibration.metrics import noise
from cluster.calibration.models import models_of
from cluster.calibration.runs import Run, count_spellings, read_predictions, read_runs
from cluster.costmodel.coefficients import Coefficients
from cluster.errors import InputError
from cluster.model.model_spec import ModelSpec


class Degrees(StrEnum):
    """How the degrees of a run are read."""

    REPAIRED = "repaired"
    AS_WRITTEN = "as-written"


def command(
    *,
    runs: Annotated[Path, typer.Option(metavar="FILE", help="CSV of serving runs.")],
    models: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of <config>.json. Default: the catalogue."),
    ] = None,
    out_path: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to write the predictions.")
    ] = Path("predictions.csv"),
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Calibration to predict with. Default: the built-in."),
    ] = None,
    peer: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Another predictor's id,ttft_ms,tpot_ms."),
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the whole report here.")
    ] = None,
    degrees: Annotated[
        Degrees, typer.Option(help="Undo double-counted degrees, or take columns literally.")
    ] = Degrees.REPAIRED,
) -> None:
    """Predict measured serving runs and compare."""
    _check_outputs(out_path, json_path, inputs=(runs, models, calibration, peer))
    table = read_runs(runs)
    theirs = None if peer is None else _peer_times(peer, table)
    as_written = degrees is Degrees.AS_WRITTEN
    coefficients = _coefficients(calibration)
    find = models_of(models)
    predict = _predictor(find, coefficients=coefficients, as_written=as_written)
    answered = answers(table, find, predict=predict, as_written=as_written)
    _write(out_path, _predictions_csv(table, answered.times), option="--out")
    report = _report(table, answered, theirs, as_written=as_written, coefficients=coefficients)
    console = out()
    print_answers(console, report, runs_path=runs, out_path=out_path)
    if report.measured:
        print_errors(console, report)
        print_decisions(console, report)
    else:
        console.print("no measured times in the file: there is nothing to compare with")
    if json_path is not None:
        _write(json_path, json.dumps(as_json(report), indent=2) + "\n", option="--json")
        console.print(f"report: {json_path}", markup=False)
    if not answered.times.known.any():
        raise typer.Exit(1)


def _coefficients(path: Path | None) -> Coefficients:
    from cluster.costmodel.calibration_file import load_calibration

    return load_calibration(path)


def _predictor(
    find: Callable[[str], ModelSpec], *, coefficients: Coefficients, as_written: bool
) -> Predict:
    from cluster.calibration.predict import predict

    return partial(predict, models=find, coefficients=coefficients, as_written=as_written)


def _report(
    runs: Sequence[Run],
    answered: Answers,
    theirs: Times | None,
    *,
    as_written: bool,
    coefficients: Coefficients,
) -> Report:
    columns = columns_of(runs, as_written=as_written)
    peer = same_rows = None
    if theirs is not None:
        peer = evaluate(columns, theirs)
        both = np.flatnonzero(answered.times.known & theirs.known)
        same = columns_of([runs[row] for row in both], as_written=as_written)
        same_rows = (
            evaluate(same, answered.times.take(both)),
            evaluate(same, theirs.take(both)),
        )
    return Report(
        rows=len(runs),
        measured=int(columns.measured.known.sum()),
        provenance=coefficients.provenance,
        as_written=as_written,
        spellings=count_spellings(runs),
        noise=noise(columns),
        reasons=answered.reasons,
        ours=evaluate(columns, answered.times),
        peer=peer,
        same_rows=same_rows,
    )


def _peer_times(path: Path, runs: Sequence[Run]) -> Times:
    found = read_predictions(path)
    if not any(run.id in found for run in runs):
        raise InputError(
            f"{path} answers none of the {len(runs)} runs: no id occurs in both files. "
            f"Fix: pass predictions of the same runs (first id here: '{runs[0].id}')."
        )
    nothing: tuple[float | None, float | None] = (None, None)
    given = [found.get(run.id, nothing) for run in runs]
    return times([ttft_s for ttft_s, _ in given], [tpot_s for _, tpot_s in given])


def _predictions_csv(runs: Sequence[Run], predicted: Times) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("id", "ttft_ms", "tpot_ms"))
    for run, ttft_s, tpot_s in zip(runs, predicted.ttft_s, predicted.tpot_s, strict=True):
        writer.writerow((run.id, _cell(ttft_s), _cell(tpot_s)))
    return text.getvalue()


def _cell(seconds: float) -> str:
    return f"{seconds * 1e3:.4f}" if np.isfinite(seconds) else ""


def _check_outputs(
    out_path: Path, json_path: Path | None, *, inputs: Sequence[Path | None]
) -> None:
    """Before anything is computed: outputs lie in folders that exist and over no input."""
    outputs = {"--out": out_path} | ({} if json_path is None else {"--json": json_path})
    taken = {path.absolute() for path in inputs if path is not None}
    for option, path in outputs.items():
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise InputError(
                f"{option} {path} is no file that can be written. "
                "Fix: name a file in a folder that exists."
            )
        if path.absolute() in taken:
            raise InputError(
                f"{option} {path} is also read by this command, or written twice. "
                "Fix: name another file."
            )
        taken.add(path.absolute())


def _write(path: Path, text: str, *, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{option} {path} cannot be written ({error}).") from error
