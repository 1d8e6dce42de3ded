"""How does a command run as a job? Packed, submitted, followed, and its results brought back.

Ctrl-C stops following and leaves the job alone: whoever means the job says `shardwise jobs cancel`.
The command ends with the exit code that it has had on the cluster.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NoReturn

import typer

from cli.console import out
from cli.files import check_writable
from cli.job_command import JobCommand
from cli.job_package import entrypoint, pack
from cli.job_record import JobRecord
from cli.job_results import bring_back, said_as_typed, saved
from cli.simulate_run import INTERRUPTED, interruptible
from cluster.errors import UnavailableError

if TYPE_CHECKING:
    from cluster.ray_backend.job_client import Job, JobClient

COMMAND = "shardwise"  # the key of a job's metadata with the command line
_LAST_LINES = 10


def run_as_job(command: JobCommand, *, address: str) -> None:
    """Submit, follow, bring back. Leaves with the job's exit code where that is not 0."""
    for path in command.outputs.values():
        check_writable(path, option="the result")
    client = connect(address)
    job_id = f"shardwise-{command.name}-{secrets.token_hex(4)}"
    record = JobRecord.of(command, job_id=job_id, address=client.address)
    checkpoint = {} if command.fresh else saved(record.checkpoint)
    record.save()
    with TemporaryDirectory(prefix="shardwise-job-") as folder:
        pack(command, checkpoint, Path(folder))
        client.submit(
            entrypoint(command),
            folder=Path(folder),
            job_id=job_id,
            metadata={COMMAND: " ".join((command.name, *command.typed))},
        )
    going_on = ", going on from where it was stopped" if checkpoint else ""
    say(f"submitted as job {job_id} to {client.address}{going_on}; Ctrl-C leaves it running")
    conclude(client, follow(client, job_id, record=record), record=record)


def connect(address: str) -> JobClient:
    """The job interface there. Raises UnavailableError without Ray, or where none answers."""
    try:
        from cluster.ray_backend.job_client import JobClient
    except ImportError as error:
        raise UnavailableError(
            f"jobs are submitted by Ray's client, which is not here ({error}). Fix: install "
            "shardwise[serve]."
        ) from error
    return JobClient(address)


def follow(client: JobClient, job_id: str, *, record: JobRecord | None) -> Job:
    """Print what the job prints until it has ended."""
    words = {} if record is None else record.words

    def left() -> str:
        return (
            f"job {job_id} goes on without us. Follow it again: shardwise jobs logs {job_id}; "
            f"end it: shardwise jobs cancel {job_id}."
        )

    with interruptible(left):
        for text in client.follow(job_id):
            sys.stdout.write(said_as_typed(text, words))
            sys.stdout.flush()
    return client.job(job_id)


def conclude(client: JobClient, job: Job, *, record: JobRecord | None) -> None:
    """Bring back what there is, say how it ended, and leave with its exit code."""
    if record is not None:
        written = bring_back(client, job, record)
        if written:
            say(f"brought back: {', '.join(map(str, written))}")
    if not job.succeeded:
        _leave(job, record)


def say(text: str) -> None:
    """A line of ours among those of the job."""
    out().print(text, markup=False)


def _leave(job: Job, record: JobRecord | None) -> NoReturn:
    if job.stopped:
        say(cancelled(job, record))
        raise typer.Exit(INTERRUPTED)
    if job.exit_code is None:
        raise UnavailableError(f"job {job.job_id} did not run to its end: {reason(job)}")
    say(f"job {job.job_id} ended with exit code {job.exit_code}: see its last lines above")
    raise typer.Exit(job.exit_code)


def cancelled(job: Job, record: JobRecord | None) -> str:
    """What is said of a job that was cancelled: how it can go on, if it can."""
    if record is None:
        return (
            f"job {job.job_id} was cancelled. What it has saved: shardwise jobs fetch {job.job_id}."
        )
    goes_on = " The same command goes on from here." if saved(record.checkpoint) else ""
    return f"job {job.job_id} was cancelled.{goes_on}"


def reason(job: Job) -> str:
    """Why a job failed: the last lines of Ray's message, which may be a whole traceback."""
    lines = [line.rstrip() for line in job.message.splitlines() if line.strip()]
    return "\n  ".join(lines[-_LAST_LINES:]) or "Ray does not say why."
