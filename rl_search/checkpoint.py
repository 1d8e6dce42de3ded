"""Where does an interrupted search go on? What was judged, and PPO's last round, in a directory.

    question.json   what the search was asked; another question does not go on from here
    state.npz       every strategy judged, in order, and the round that learning had reached

Each save replaces `state.npz` at once, so that a kill at any moment leaves the one before.
Invariant: a search that goes on from a save gives what it would have given without the stop.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from cluster.errors import InputError
from rl_search.archive import Archive, Memory
from rl_search.evaluator import Judged
from rl_search.space import ActionSpace

_QUESTION, _STATE = "question.json", "state.npz"
FILES = (_QUESTION, _STATE)
Question = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a save holds. `round` is the method's own, empty where it has none."""

    memory: Memory
    asked: int
    charged: int
    round: bytes


class Checkpoint:
    """One directory for one search. Raises InputError where it cannot be used."""

    def __init__(self, directory: Path, question: Question) -> None:
        self.directory = directory
        self._question = json.loads(json.dumps(question))
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._check_question()
        except OSError as error:
            raise InputError(
                f"{directory} cannot hold a checkpoint ({error}). Fix: pass another --checkpoint."
            ) from error

    def save(self, archive: Archive, *, round_: bytes = b"") -> None:
        """Keep everything judged so far."""
        judged, temporary = archive.judged, self.directory / f"{_STATE}.new"
        with temporary.open("wb") as file:
            np.savez(
                file,
                actions=archive.actions.astype(np.int16),
                value=judged.value,
                shortfall=judged.shortfall,
                bubble=judged.bubble,
                asked=np.asarray(archive.asked),
                charged=np.asarray(archive.charged),
                round=np.frombuffer(round_, dtype=np.uint8),
            )
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.directory / _STATE)

    def load(self, space: ActionSpace) -> Saved | None:
        """What was saved last, None where nothing was."""
        path = self.directory / _STATE
        if not path.exists():
            return None
        try:
            with np.load(path) as held:
                memory = Memory(space)
                memory.add(
                    held["actions"].astype(np.int64),
                    Judged(held["value"], held["shortfall"], held["bubble"]),
                )
                return Saved(
                    memory=memory,
                    asked=int(held["asked"]),
                    charged=int(held["charged"]),
                    round=held["round"].tobytes(),
                )
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise InputError(
                f"{path} is no checkpoint of a search ({error}). Fix: remove {self.directory}, or "
                "begin anew with --fresh."
            ) from error

    def clear(self) -> None:
        """Forget everything; the directory stays if there is more in it."""
        forget(self.directory)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    def _check_question(self) -> None:
        path = self.directory / _QUESTION
        if not path.exists():
            path.write_text(json.dumps(self._question, indent=2), encoding="utf-8")
            return
        try:
            asked = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is no JSON ({error}). Fix: remove it.") from error
        names = sorted({*asked, *self._question})
        other = [name for name in names if asked.get(name) != self._question.get(name)]
        if other:
            told = ", ".join(
                f"{name} was {asked.get(name)!r} and is {self._question.get(name)!r}"
                for name in other
            )
            raise InputError(
                f"{self.directory} holds a search that was asked something else: {told}. Fix: "
                "pass another --checkpoint, or begin anew with --fresh."
            )


def forget(directory: Path) -> None:
    """Remove what a search has saved in `directory`, and nothing else."""
    for name in (_STATE, f"{_STATE}.new", _QUESTION):
        (directory / name).unlink(missing_ok=True)
