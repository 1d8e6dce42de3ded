"""How wrong is a fit about runs it has not seen? They are left out, predicted, and compared.

Three questions: a model that was never measured and a system that was never measured (each left
out once), and a condition that was never measured (one workload on one system by one backend at
one concurrency; about 30 % of them once, or k folds). Which conditions are left out is decided by
a hash of the condition alone, so that neither other rows nor their order change it.

Invariants: a condition is never on both sides of a fold, nor is one model under two names; a run
is tested at most once by each question; figures do not depend on how many processes work.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster.calibration.columns import OVERALL, columns_of, times
from cluster.calibration.evaluation import evaluate
from cluster.calibration.fit import STAGES, Progress, Stage, distinct, fit_runs
from cluster.calibration.predict import predict
from cluster.calibration.runs import Run
from cluster.costmodel.coefficients import Coefficients
from cluster.errors import InputError, ShardwiseError, UnavailableError
from cluster.model.model_spec import ModelSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Answer = tuple[Floats, Floats] | str  # (TTFT, TPOT) of the runs left out, or why there are none

HELD_OUT = 0.3
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class By(StrEnum):
    """What is left out together."""

    MODELS = "models"
    SYSTEMS = "systems"
    CONDITIONS = "conditions"


class Fold(NamedTuple):
    """Row numbers to fit to and to test on, ascending."""

    name: str
    train: Ints
    test: Ints


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Median |predicted / measured - 1| over `runs` runs, as fractions; NaN over nothing.

    `throughput` is of output tokens/s/GPU, `layout_ratio` of the ratio of two layouts' throughput
    in one condition.
    """

    runs: int
    tpot: float
    ttft: float
    throughput: float
    layout_ratio: float


@dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """Errors on runs left out, together and by fold; `before` is what the start says of them.

    `skipped`: folds that could not be fitted, and why.
    """

    by: By
    held_out: Figures
    before: Figures
    folds: Mapping[str, Figures]
    skipped: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Task:
    train: tuple[Run, ...]
    test: tuple[Run, ...]
    models: Mapping[str, ModelSpec]
    start: Coefficients
    stages: tuple[Stage, ...]


def folds(
    runs: Sequence[Run],
    by: By,
    *,
    parts: int | None = None,
    alike: Mapping[str, str] | None = None,
) -> list[Fold]:
    """The folds of `runs`, in the order of their names.

    Conditions: `parts` folds, or one that holds out about 30 % where None. `alike` gives configs
    that are one model a common name. Raises InputError where nothing can be left out.
    """
    match by:
        case By.MODELS:
            names = [(alike or {}).get(run.config, run.config) for run in runs]
        case By.SYSTEMS:
            names = [run.system for run in runs]
        case By.CONDITIONS:
            names = [_part(run, parts, alike=alike or {}) for run in runs]
    labels = np.array(names, dtype=np.str_)
    groups = sorted(set(names) - {""})
    rows = np.arange(len(runs))
    found = [Fold(name, rows[labels != name], rows[labels == name]) for name in groups]
    found = [fold for fold in found if len(fold.train)]
    if not found:
        raise InputError(
            f"the {len(runs)} runs cannot be cross-validated by {by}: leaving any out leaves none, "
            "or none is left out. Fix: add runs, or validate by something else "
            f"({', '.join(other for other in By if other is not by)}, none)."
        )
    return found


def cross_validate(
    runs: Sequence[Run],
    models: Callable[[str], ModelSpec],
    *,
    start: Coefficients,
    by: By,
    parts: int | None = None,
    stages: Sequence[Stage] = STAGES,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> CrossValidation:
    """Fit without each fold, from and around `start`, and predict what was left out.

    Copies of a measured fact are dropped first. `jobs` processes work; with one (or one fold) it
    is this one. Raises InputError where no fold can be fitted, UnavailableError where a process
    dies.
    """
    kept = distinct(runs)
    known = {config: models(config) for config in dict.fromkeys(run.config for run in kept)}
    cut = folds(kept, by, parts=parts, alike=one_model(known))
    tasks = [
        _Task(
            train=tuple(kept[row] for row in fold.train),
            test=tuple(kept[row] for row in fold.test),
            models=known,
            start=start,
            stages=tuple(stages),
        )
        for fold in cut
    ]
    answers: dict[int, Answer] = {}
    with closing(_answered(tasks, jobs=jobs, progress=progress)) as answered:
        for index, answer in answered:
            answers[index] = answer
            progress(f"{by}: {len(answers)} of {len(tasks)} folds, without {cut[index].name}")
    by_fold: dict[str, Figures] = {}
    skipped: dict[str, str] = {}
    tested: list[Run] = []
    held: list[tuple[Floats, Floats]] = []
    for index, fold in enumerate(cut):
        answer = answers[index]
        if isinstance(answer, str):
            skipped[fold.name] = answer
            continue
        by_fold[fold.name] = figures(tasks[index].test, *answer)
        tested += tasks[index].test
        held.append(answer)
    if not held:
        raise InputError(f"no fold by {by} can be fitted: {next(iter(skipped.values()))}")
    ttft, tpot = (np.concatenate(column) for column in zip(*held, strict=True))
    return CrossValidation(
        by=by,
        held_out=figures(tested, ttft, tpot),
        before=figures(tested, *predict(tested, known.__getitem__, coefficients=start)),
        folds=by_fold,
        skipped=skipped,
    )


def figures(runs: Sequence[Run], ttft_s: Floats, tpot_s: Floats) -> Figures:
    """How far predictions (seconds, in the order of `runs`) are from what was measured."""
    found = evaluate(columns_of(runs), times(ttft_s, tpot_s))
    overall = found.errors["overall"][OVERALL]
    return Figures(
        runs=len(runs),
        tpot=overall["tpot"].median,
        ttft=overall["ttft"].median,
        throughput=overall["throughput"].median,
        layout_ratio=found.ranking.ratio_median,
    )


def one_model(models: Mapping[str, ModelSpec]) -> dict[str, str]:
    """A common name for configs of one shape (DeepSeek-V3 and R1): those that differ in weights.

    A fold that left out one of them would be fitted to the other.
    """
    shapes: dict[ModelSpec, list[str]] = {}
    for config, model in models.items():
        shape = replace(model, name="", architecture="", source="", notes=(), max_context=0)
        shapes.setdefault(shape, []).append(config)
    return {config: ", ".join(sorted(same)) for same in shapes.values() for config in same}


def _part(run: Run, parts: int | None, *, alike: Mapping[str, str]) -> str:
    """The fold that tests the condition of `run`, "" for none."""
    condition = (
        alike.get(run.config, run.config),
        run.system,
        run.backend,
        run.precision,
        run.isl,
        run.osl,
        run.concurrency,
    )
    digest = sha256(repr(condition).encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2.0**64
    if parts is None:
        return f"{HELD_OUT:.0%} of conditions" if place < HELD_OUT else ""
    return f"part {int(place * parts) + 1:0{len(str(parts))}d} of {parts}"


def _answered(
    tasks: Sequence[_Task], *, jobs: int, progress: Progress
) -> Generator[tuple[int, Answer], None, None]:
    """Number and answer of each task as it is done."""
    if jobs <= 1 or len(tasks) == 1:
        for index, task in enumerate(tasks):
            yield index, _held_out(task, progress=progress)
        return
    before = set(multiprocessing.active_children())
    # Spawned, not forked: a process that has threads (BLAS has) may not be copied safely.
    context = multiprocessing.get_context("spawn")
    with _single_threaded():
        pool = ProcessPoolExecutor(
            max_workers=min(jobs, len(tasks)), mp_context=context, initializer=_leave_interrupts
        )
        try:
            numbers: dict[Future[Answer], int] = {
                pool.submit(_held_out, task): index for index, task in enumerate(tasks)
            }
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        except BrokenProcessPool as error:
            raise UnavailableError(
                "a process of the cross-validation died, perhaps for lack of memory. "
                "Fix: use fewer processes (--jobs 1)."
            ) from error
        except BaseException:  # Ctrl-C among them: a fold in progress would go on for minutes
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _held_out(task: _Task, progress: Progress = lambda _: None) -> Answer:
    try:
        fit = fit_runs(
            task.train,
            task.models.__getitem__,
            start=task.start,
            stages=task.stages,
            progress=progress,
        )
        return predict(task.test, task.models.__getitem__, coefficients=fit.coefficients)
    except ShardwiseError as error:  # as text: not every error survives the way between processes
        return str(error)


def _leave_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; the first ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes started inside compute with one thread each: there is one per core already."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
