"""Where does our gateway's time go under the load of `bench.gateway`?

    python -m bench.gateway_parts.profile --py-spy PROGRAM [--load NAME] [--seconds S]

PROGRAM is py-spy, from an environment of its own (`pip install py-spy`). It looks at the event loop
of the gateway replica 200 times a second while callers keep it busy. A share is of the samples in
which that thread ran: with a function under it, or in the function itself.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

from bench.gateway_parts.answers import question
from bench.gateway_parts.load import press
from bench.gateway_parts.measure import loads
from bench.gateway_parts.process import NotMeasuredError
from bench.gateway_parts.shardwise import shardwise

_LOOP = "_run_user_code_event_loop"  # Serve's thread for a replica's own code
_FRAME = re.compile(r"(.*) \((?:.*/)?([^/]+/[^/]+):\d+\)")
_RATE = 200
_SHOWN = 40


@dataclass(frozen=True)
class Profile:
    """Samples of one thread, those under each function, and those in it."""

    samples: int
    under: Counter[str]
    inside: Counter[str]

    @classmethod
    def of(cls, stacks: Iterable[str]) -> Profile:
        """From py-spy's raw format: frames joined by `;`, a blank, how often."""
        samples, under, inside = 0, Counter[str](), Counter[str]()
        for line in stacks:
            stack, _, times = line.rpartition(" ")
            frames = stack.split(";")
            loop = next((i for i, frame in enumerate(frames) if _LOOP in frame), None)
            if loop is None:
                continue
            names = [_FRAME.sub(r"\1 (\2)", frame) for frame in frames[loop:]]
            samples += int(times)
            inside[names[-1]] += int(times)
            for name in set(names):
                under[name] += int(times)
        return cls(samples, under, inside)

    def text(self) -> str:
        """The largest shares."""
        lines = [f"{self.samples} samples"]
        for title, counts in (("under", self.under), ("inside", self.inside)):
            lines += ["", title]
            lines += [
                f"{100 * count / self.samples:6.1f} %  {name}"
                for name, count in counts.most_common(_SHOWN)
            ]
        return "\n".join(lines)


def record(py_spy: str, *, load_name: str, seconds: int) -> Profile:
    """Start the gateway, keep it busy, look at it. NotMeasuredError if that fails."""
    load = loads(quick=False)[load_name]
    with (
        tempfile.TemporaryDirectory(prefix="gateway-profile-") as name,
        shardwise(Path(name)) as target,
    ):
        out = Path(name) / "stacks.txt"
        arguments = ["record", "--format", "raw", "--rate", str(_RATE), "--output", str(out)]
        spy = subprocess.Popen(
            [py_spy, *arguments, "--duration", str(seconds), "--pid", str(_gateway())],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        body = question(target.model, stream=load.stream, pace_ms=load.pace_ms)
        tally = uvloop.run(press(target, body, width=load.width, seconds=seconds + 1.0))
        _, said = spy.communicate(timeout=60)
        if not out.is_file():
            raise NotMeasuredError(f"py-spy: {said.decode(errors='replace').strip()}")
        print(f"{tally.requests_per_s:,.0f} requests/s while it was looked at")
        return Profile.of(out.read_text().splitlines())


def _gateway() -> int:
    for process in psutil.Process().children(recursive=True):
        if any(":gateway" in part for part in process.cmdline()):
            return process.pid
    raise NotMeasuredError("there is no gateway replica among the processes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--py-spy", required=True)
    parser.add_argument("--load", choices=list(loads(quick=True)), default="streamed")
    parser.add_argument("--seconds", type=int, default=10)
    arguments = parser.parse_args()
    try:
        profile = record(arguments.py_spy, load_name=arguments.load, seconds=arguments.seconds)
    except (NotMeasuredError, OSError) as error:
        sys.exit(f"error: {error}")
    print(profile.text())


if __name__ == "__main__":
    main()
