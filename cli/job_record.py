"""What does this machine remember of a job it has submitted? Where its results go.

One file a job under `jobs/` beside the instance's state. It is not kept on the cluster: whoever may
submit jobs there could otherwise say where files of this machine are written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from cli.job_command import JobCommand
from serving.instance import Instance


class JobRecord(BaseModel):
    """Where a job runs, and where what it leaves goes.

    By their name in the job: where its `outputs` go, and what the user called its files (`words`).
    `checkpoint`: where it goes, None where there can be none.
    """

    model_config = ConfigDict(frozen=True)

    job_id: str
    address: str
    typed: tuple[str, ...]
    outputs: Mapping[str, Path]
    words: Mapping[str, str]
    checkpoint: Path | None

    @classmethod
    def of(cls, command: JobCommand, *, job_id: str, address: str) -> Self:
        """The record of a command about to be submitted."""
        return cls(
            job_id=job_id,
            address=address,
            typed=command.typed,
            outputs=command.outputs,
            words=command.words,
            checkpoint=checkpoint_of(command),
        )

    def save(self) -> None:
        """Remember it."""
        path = _folder() / f"{self.job_id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=2), encoding="utf-8")


def recorded(job_id: str) -> JobRecord | None:
    """What is remembered of a job, None of one that another machine has submitted."""
    path = _folder() / f"{Path(job_id).name}.json"
    try:
        return JobRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def checkpoint_of(command: JobCommand) -> Path | None:
    """The directory of a command's checkpoint: the one asked for, or one by the question."""
    if not command.keeps:
        return None
    if command.kept is not None:
        return command.kept.absolute()
    asked = hashlib.sha256(repr((command.name, _question(command))).encode())
    for name, path in sorted(command.inputs.items()):
        asked.update(name.encode() + path.read_bytes())
    return _folder() / "checkpoints" / asked.hexdigest()[:16]


def _question(command: JobCommand) -> tuple[str, ...]:
    return tuple(word for word in command.arguments if word != "--fresh")


def _folder() -> Path:
    return Instance.default().directory.parent / "jobs"
