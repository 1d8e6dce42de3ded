"""How do a job's results come back, and what are they called here?

Invariant: a result in JSON names files as the user did, so that it equals what the command writes
without a job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cli.files import about
from cli.job_command import KEPT
from cli.job_record import JobRecord
from cluster.errors import UnavailableError
from rl_search.checkpoint import FILES, forget

if TYPE_CHECKING:
    from cluster.ray_backend.job_client import Job, JobClient


def bring_back(client: JobClient, job: Job, record: JobRecord) -> tuple[Path, ...]:
    """Write what the job has left to where its command would have. Returns the results' paths.

    A checkpoint replaces the one here; one that a finished job has no more use for is removed.
    Raises UnavailableError where a finished job's results are gone.
    """
    there = client.left(job)
    lost = [name for name in record.outputs if name not in there]
    if job.succeeded and lost:
        raise UnavailableError(
            f"job {job.job_id} is done, and {', '.join(lost)} is no longer on its node: its logs "
            "were removed, or Ray was started anew. Fix: run it again."
        )
    written = []
    for name, path in record.outputs.items():
        if name in there:
            _write(path, as_typed(client.read(job, name), path, record.words))
            written.append(path)
    if record.checkpoint is not None:
        _keep(client, job, there, record.checkpoint)
    return tuple(written)


def bring_all(client: JobClient, job: Job, folder: Path) -> tuple[Path, ...]:
    """Write all that the job has left into `folder`, under the job's names for it."""
    written = []
    for name in client.left(job):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or name.startswith("inputs/"):
            continue
        _write(path, client.read(job, name))
        written.append(path)
    return tuple(written)


def as_typed(content: bytes, path: Path, words: Mapping[str, str]) -> bytes:
    """A JSON result with the user's names of files in place of the job's."""
    if path.suffix != ".json":
        return content
    for called, typed in words.items():
        content = content.replace(json.dumps(called).encode(), json.dumps(typed).encode())
    return content


def said_as_typed(text: str, words: Mapping[str, str]) -> str:
    """What a job prints, with the user's names of files."""
    for called, typed in words.items():
        text = text.replace(called, typed)
    return text


def saved(checkpoint: Path | None) -> dict[str, Path]:
    """The files of a checkpoint here, by their name."""
    if checkpoint is None:
        return {}
    return {name: checkpoint / name for name in FILES if (checkpoint / name).is_file()}


def _keep(client: JobClient, job: Job, there: tuple[str, ...], checkpoint: Path) -> None:
    names = [name for name in FILES if f"{KEPT}/{name}" in there]
    if names or job.succeeded:
        forget(checkpoint)
    for name in names:
        _write(checkpoint / name, client.read(job, f"{KEPT}/{name}"))


def _write(path: Path, content: bytes) -> None:
    with about(path, option="the result"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
