"""`shardwise calibrate`: fit the cost model to what was measured, and write a calibration file.

One source at a time: serving runs (`--runs`), microbenchmarks on this machine or a Ray cluster
(`--measure`), or summaries of Nsight Systems (`--nsys`). The file lies over the shipped calibration
and holds only what differs. `--show` prints one. `--live` writes another kind of file, which the
simulator reads: step times of a real engine on this machine (`cluster/calibration/live_file.py`).
Exit code 0: written. 2: bad input. 4: PyTorch, vLLM, Ray or a device does not answer. 130:
interrupted, nothing written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from cli.address import AddressOption
from cli.calibrate_live import LiveRequest, from_live
from cli.calibrate_report import print_calibration
from cli.calibrate_result import Calibrated
from cli.calibrate_runs import RunsRequest, Start, from_runs
from cli.calibrate_sources import TraceRequest, from_measurements, from_trace
from cli.console import duration_s, out
from cluster.calibration.cross_validation import By
from cluster.calibration.nsys_updates import Phase
from cluster.calibration.traced_step import TracedStep
from cluster.costmodel.calibration_file import (
    FOLDER,
    SHIPPED,
    CalibrationFile,
    load_calibration,
    operator_coefficients,
    read_calibration,
)
from cluster.errors import InputError
from cluster.model.layout import Layout
from serving.bundled import HEAVY

_T = TypeVar("_T")


class Validate(StrEnum):
    """What to leave out in turn."""

    MODELS = "models"
    SYSTEMS = "systems"
    CONDITIONS = "conditions"
    NONE = "none"


class TracedPhase(StrEnum):
    """Which phase was profiled."""

    DECODE = "decode"
    PREFILL = "prefill"


_PHASES: dict[TracedPhase, Phase] = {
    TracedPhase.DECODE: "decode",
    TracedPhase.PREFILL: "prefill",
}


def command(
    file: Annotated[
        Path | None, typer.Argument(help="With --show: the file. Default: the shipped.")
    ] = None,
    *,
    runs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Fit to this CSV of serving runs.")
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of <config>.json. Default: the catalogue."),
    ] = None,
    start: Annotated[
        Start, typer.Option("--from", help="Start of the fit; `operators` forgets fitted values.")
    ] = Start.SHIPPED,
    cross_validate: Annotated[
        list[Validate] | None,
        typer.Option(help="What to leave out and predict; repeat it. Default: conditions."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(min=2, help="Folds of conditions. Default: 30 % are left out, once."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes to cross-validate with. Default: cores.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run microbenchmarks and fit to them.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Measure this machine (the default).")
    ] = False,
    address: AddressOption = None,
    budget: Annotated[str, typer.Option(help="Time to measure for.")] = "60s",
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of the device. --measure recognises it.")
    ] = None,
    nsys: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Correct by this CSV of `nsys stats`; repeat it."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="--nsys: catalogue name, hub id, config.json or directory. "
            "--live: a bundled model or a directory, by default the bundled one."
        ),
    ] = None,
    phase: Annotated[TracedPhase | None, typer.Option(help="--nsys: what was profiled.")] = None,
    steps: Annotated[
        str | None, typer.Option(help="--nsys: engine steps, or the NVTX range that marks them.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="--nsys: sequences (or prompts) in a step.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="--nsys: tokens of each sequence (or prompt).")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="--nsys: tensor parallelism.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="--nsys: attention data parallelism.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="--nsys: pipeline stages.")] = 1,
    moe_ep: Annotated[
        int | None, typer.Option(min=1, help="--nsys: expert parallelism. Default: dp.")
    ] = None,
    backend: Annotated[str, typer.Option(help="--nsys: vllm, sglang or trtllm.")] = "vllm",
    devices: Annotated[
        int | None, typer.Option(min=1, help="--nsys: GPUs the files add up. Default: all.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Start an engine here and measure its steps.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="--live: about a minute instead of four.")
    ] = False,
    max_num_seqs: Annotated[
        int, typer.Option(min=2, help="--live: sequences the engine runs at a time.")
    ] = 16,
    max_model_len: Annotated[
        int, typer.Option(min=128, help="--live: tokens of its longest sequence.")
    ] = 2048,
    chunk: Annotated[int, typer.Option(min=32, help="--live: tokens of its largest step.")] = 512,
    threads: Annotated[int, typer.Option(min=1, help="--live: cores it computes on.")] = 1,
    show: Annotated[bool, typer.Option("--show", help="Print a calibration.")] = False,
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where to write. Default: calibration.yaml, with --live live.yaml.",
        ),
    ] = None,
) -> None:
    """Fit the cost model to measurements and write a calibration file."""
    given = {
        "--runs": runs is not None,
        "--measure": measure,
        "--nsys": bool(nsys),
        "--live": live,
        "--show": show,
    }
    chosen = [name for name, there in given.items() if there]
    if len(chosen) != 1:
        raise InputError(
            f"pass exactly one of {', '.join(given)}; given: {', '.join(chosen) or 'none'}."
        )
    if file is not None and not show:
        raise InputError(f"'{file}' is no source. Fix: name it with --runs, --nsys or --show.")
    console = out()
    if show:
        _show(file, console)
        return
    shipped = [FOLDER / f"{name}.yaml" for name in SHIPPED]
    read = shipped if start is Start.SHIPPED else shipped[:1]  # over the tables one may write
    out_path = out_path or Path("live.yaml" if live else "calibration.yaml")
    _check_out(out_path, inputs=[*read, *(() if runs is None else (runs,)), *(nsys or ())])
    try:
        if live:
            request = LiveRequest(
                model=model or HEAVY,
                quick=quick,
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
                chunk=chunk,
                threads=threads,
            )
            measured = from_live(request, console, today=date.today())
            _write(out_path, measured.dumps())
            console.print(f"\nwritten: {out_path} ({len(measured.points)} points)", markup=False)
            return
        if runs is not None:
            found = from_runs(
                RunsRequest(
                    path=runs,
                    models=models,
                    start=start,
                    validate=_validations(cross_validate),
                    parts=folds,
                    jobs=jobs or len(os.sched_getaffinity(0)),
                ),
                console,
            )
        elif measure:
            found = from_measurements(
                device=device,
                address=_place(local, address),
                budget_s=duration_s(budget, option="--budget"),
                console=console,
            )
        else:
            layout = _layout(tp=tp, dp=dp, pp=pp, moe_ep=moe_ep)
            trace = TraceRequest(
                paths=tuple(nsys or ()),
                model=_needed(model, option="--model"),
                device=_needed(device, option="--device"),
                step=TracedStep(
                    phase=_PHASES[_needed(phase, option="--phase")],
                    batch=_needed(batch, option="--batch"),
                    context=_needed(context, option="--context"),
                    layout=layout,
                    backend=backend,
                ),
                steps=_needed(steps, option="--steps"),
                devices=devices or layout.devices,
            )
            found = from_trace(trace, console)
        _write(out_path, _text(out_path, found, today=date.today()))
    except KeyboardInterrupt:
        console.print("interrupted: nothing was written")
        raise typer.Exit(130) from None
    console.print(f"\nwritten: {out_path} ({len(found.parameters)} coefficients)", markup=False)


def _needed(value: _T | None, *, option: str) -> _T:
    if value is None:
        raise InputError(
            f"--nsys needs {option}: the trace does not say what was profiled. "
            "Fix: pass --model, --device, --phase, --steps, --batch, --context, and --tp, --dp, "
            "--pp, --moe-ep where they are not 1."
        )
    return value


def _place(local: bool, address: str | None) -> str | None:
    if local and address is not None:
        raise InputError("--local and --address exclude each other. Fix: pass one of them.")
    return address


def _validations(asked: list[Validate] | None) -> tuple[By, ...] | None:
    if asked is None or not asked:
        return None
    return tuple(By(each.value) for each in dict.fromkeys(asked) if each is not Validate.NONE)


def _layout(*, tp: int, dp: int, pp: int, moe_ep: int | None) -> Layout:
    spread = dp if moe_ep is None else moe_ep
    if (tp * dp) % spread:
        raise InputError(
            f"--moe-ep {spread} does not divide the {tp * dp} devices of tp x dp. "
            "Fix: pass the degrees that were profiled."
        )
    return Layout(tp=tp, dp=dp, pp=pp, moe_tp=tp * dp // spread, moe_ep=spread)


def _show(path: Path | None, console: Console) -> None:
    loaded = load_calibration(path)
    shipped = path is None
    file = read_calibration(FOLDER / f"{SHIPPED[-1]}.yaml" if path is None else path)
    print_calibration(
        console,
        file,
        names=loaded.names if shipped else tuple(file.parameters),
        loaded=loaded,
        operators=operator_coefficients(),
    )


def _check_out(path: Path, *, inputs: Sequence[Path]) -> None:
    """Before anything is measured or fitted: the file can be written, and is no input."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(
            f"--out {path} is no file that can be written. Fix: name a file in a folder that "
            "exists."
        )
    if path.resolve() in {each.resolve() for each in inputs}:
        raise InputError(f"--out {path} is also read by this command. Fix: name another file.")


def _text(path: Path, found: Calibrated, *, today: date) -> str:
    return CalibrationFile(
        name=path.stem or "calibration",
        provenance=f"{found.basis}, {today.isoformat()}, over: {found.over}",
        fit={**found.fit, "date": today.isoformat()},
        cross_validation=dict(found.cross_validation),
        parameters=dict(found.parameters),
    ).dumps()


def _write(path: Path, text: str) -> None:
    # Whole or not at all: a file that breaks off would still be YAML.
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise InputError(f"--out {path} cannot be written ({error}).") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
