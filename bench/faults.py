"""How soon is a fault noticed, and how soon is what it took back?

    python -m bench.faults [--quick] [--json FILE]

A service of its own, under streams and short requests whose answers are known: a real engine of two
ranks whose processes are struck one by one, then scripted engines (three replicas, two gateways)
for the controller. `--quick`: the scripted ones alone. Loading, from Serve's start of the new
replica to its first answer, is told apart: it depends on the model and on the machine.
Exit code 1: a fault took longer than is required, loading apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.live.healing import REQUIRED_S
from tests.live.scripted_instance import REPLICAS, scripted_instance
from tests.live.strikes import STRIKES, Struck, replica, strike, strike_controller, undisturbed
from tests.live.test_faults_scripted import SHORT, STREAMS
from tests.live.tiny_instance import MODEL, tiny_instance
from tests.live.two_ranks.conftest import ARGUMENTS, LIMITS, STEERING
from tests.live.two_ranks.test_faults import whole


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault; seconds. `loading_s`: None where nothing is loaded. `starts`: of replicas."""

    what: str
    noticed_s: float | None
    loading_s: float | None
    starts: int
    apart_s: float
    answers: int
    wrong: int


def scripted(folder: Path) -> list[Row]:
    """Faults of scripted engines and of the controller."""
    rows: list[Row] = []
    with scripted_instance(folder, gateways=2) as service:
        hits = {"SIGKILL": psutil.Process.kill, "engine frozen": service.freeze}
        for name, hit in hits.items():
            service.whole()
            found = asyncio.run(
                strike(service, replica, hit, streams=STREAMS, short=SHORT, limit_s=90)
            )
            rows.append(_row(f"scripted replica, {name}", found))
        for sign in (signal.SIGKILL, signal.SIGSTOP):
            service.whole()
            back_s, account = asyncio.run(
                strike_controller(service, sign, replicas=REPLICAS, streams=STREAMS, short=SHORT)
            )
            rows.append(
                Row(
                    what=f"controller, {sign.name}",
                    noticed_s=None,
                    loading_s=None,
                    starts=0,
                    apart_s=back_s,
                    answers=account.streams + account.short,
                    wrong=len(account.wrong),
                )
            )
    return rows


def real(folder: Path) -> list[Row]:
    """Faults of a vLLM engine with two ranks."""
    rows: list[Row] = []
    with tiny_instance(folder, steering=STEERING, engine_args=ARGUMENTS, limits=LIMITS) as service:
        streams = [undisturbed(service, f"Once {n}", model=MODEL, length=60) for n in range(3)]
        short = [undisturbed(service, "One and", model=MODEL, length=2)]
        for case in streams:
            case.body["stream"] = True
        for victim, sign in STRIKES:
            whole(service)
            name = f"{victim.__name__.replace('_', ' ')}, {sign.name}"
            found = asyncio.run(
                strike(service, victim, _sender(sign), streams=streams, short=short, limit_s=600)
            )
            rows.append(_row(name, found))
    return rows


def _sender(sign: signal.Signals):
    return lambda process: process.send_signal(sign)


def _row(what: str, found: Struck) -> Row:
    return Row(
        what=what,
        noticed_s=found.healing.noticed_s,
        loading_s=found.healing.loading_s,
        starts=found.healing.starts,
        apart_s=found.healing.apart_s,
        answers=found.account.streams + found.account.short,
        wrong=len(found.account.wrong),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = scripted(Path(folder))
    if not options.quick:
        with tempfile.TemporaryDirectory() as folder:
            rows = real(Path(folder)) + rows
    print(
        f"{'what':32} {'noticed s':>10} {'loading s':>10} {'starts':>6} {'apart s':>8} "
        f"{'answers':>8} wrong"
    )
    for row in rows:
        noticed, loading = _text(row.noticed_s), _text(row.loading_s)
        print(
            f"{row.what:32} {noticed:>10} {loading:>10} {row.starts:6} {row.apart_s:8.1f} "
            f"{row.answers:8} {row.wrong}"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    late = [row.what for row in rows if row.apart_s > REQUIRED_S]
    print(f"longer than {REQUIRED_S:.0f} s: {', '.join(late) or 'none'}")
    if late:
        raise SystemExit(1)


def _text(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


if __name__ == "__main__":
    main()
