"""What happened to whom, event by event? For those who want to look; by default nobody listens."""

from __future__ import annotations

from typing import Protocol

from cluster.sim.job import Job


class EventLog(Protocol):
    """Told of every event, with the simulation's time in seconds."""

    def dispatched(self, job: Job, replica_id: str, now_s: float) -> None:
        """A request was handed to a replica."""

    def first(self, job: Job, replica_id: str, now_s: float) -> None:
        """Its first token was made."""

    def finished(self, job: Job, replica_id: str, now_s: float) -> None:
        """Its last token was made."""

    def moved(self, job: Job, replica_id: str, now_s: float) -> None:
        """It was taken back from a replica before it started."""

    def handed(self, job: Job, replica_id: str, now_s: float) -> None:
        """Its prompt is done, and its KV cache leaves for a replica that decodes."""

    def refused(self, job: Job, reason: str, now_s: float) -> None:
        """It was refused, given up, or broken."""

    def replica(self, replica_id: str, what: str, now_s: float) -> None:
        """Something happened to a replica."""


class _Nobody:
    """Listens to nothing."""

    def dispatched(self, job: Job, replica_id: str, now_s: float) -> None: ...
    def first(self, job: Job, replica_id: str, now_s: float) -> None: ...
    def finished(self, job: Job, replica_id: str, now_s: float) -> None: ...
    def moved(self, job: Job, replica_id: str, now_s: float) -> None: ...
    def handed(self, job: Job, replica_id: str, now_s: float) -> None: ...
    def refused(self, job: Job, reason: str, now_s: float) -> None: ...
    def replica(self, replica_id: str, what: str, now_s: float) -> None: ...


NO_LOG: EventLog = _Nobody()


class Lines:
    """Every event as a line of text: two runs are the same if their lines are."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def dispatched(self, job: Job, replica_id: str, now_s: float) -> None:
        """See `EventLog`."""
        self.lines.append(f"{now_s:.9f} {job.number} to {replica_id}")

    def first(self, job: Job, replica_id: str, now_s: float) -> None:
        """See `EventLog`."""
        self.lines.append(f"{now_s:.9f} {job.number} first token from {replica_id}")

    def finished(self, job: Job, replica_id: str, now_s: float) -> None:
        """See `EventLog`."""
        self.lines.append(f"{now_s:.9f} {job.number} finished on {replica_id}")

    def moved(self, job: Job, replica_id: str, now_s: float) -> None:
        """See `EventLog`."""
        self.lines.append(f"{now_s:.9f} {job.number} taken back from {replica_id}")

    def handed(self, job: Job, replica_id: str, now_s: float) -> None:
        """See `EventLog`."""
        self.lines.append(f"{now_s:.9f} {job.number} prefilled by {replica_id}")

    def refused(self, job: Job, reason: str, now_s: float) -> None:
        """See `EventLog`."""
        self.lines.append(f"{now_s:.9f} {job.number} refused: {reason}")

    def replica(self, replica_id: str, what: str, now_s: float) -> None:
        """See `EventLog`."""
        self.lines.append(f"{now_s:.9f} {replica_id} {what}")
