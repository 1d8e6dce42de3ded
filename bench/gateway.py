"""What does a gateway add to an engine, and how much can it carry? Ours beside its peers, one run.

    python -m bench.gateway [--quick] [--only NAMES] [--json FILE]

The same fake engine behind all, one gateway after the other, each asked through its HTTP port by
the same callers on this machine. Peers are installed into environments of their own when they are
first needed (`bench.peers.environment`); one that cannot be installed or started is named with the
reason. Ours needs the bundled model's tokenizer: `shardwise setup` makes it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from bench.gateway_parts.load import Target
from bench.gateway_parts.measure import Load, Readings, loads, measure
from bench.gateway_parts.process import (
    NotMeasuredError,
    free_port,
    module,
    own_environment,
    running,
)
from bench.gateway_parts.table import ENGINE, OURS, Results
from bench.peers.gateways import EXPOSED, GATEWAYS, Gateway, Place
from cluster.errors import ShardwiseError
from serving.bundled import HEAVY


def compare(gateways: Mapping[str, Gateway], *, plan: dict[str, Load], directory: Path) -> Results:
    """Start, measure and stop each."""
    readings: dict[str, Readings] = {}
    missing: dict[str, str] = {}
    begun_s = time.monotonic()
    engine = Target(port=free_port(), model=HEAVY)
    with running(
        module(
            "bench.gateway_parts.fake_engine",
            *("--port", str(engine.port), "--model", engine.model),
        ),
        target=engine,
        environment=own_environment(),
        log=directory / "engine.log",
    ):
        engines = frozenset(child.pid for child in psutil.Process().children())
        place = Place(directory=directory, engine_port=engine.port)
        for name, gateway in gateways.items():
            print(f"{time.monotonic() - begun_s:4.0f} s {name}", file=sys.stderr, flush=True)
            try:
                with gateway(place) as target:
                    for load, reading in measure(target, plan, excepted=engines):
                        if isinstance(reading, str):
                            missing[f"{name} {load}"] = reading
                        else:
                            readings.setdefault(name, {})[load] = reading
            except (NotMeasuredError, ShardwiseError) as error:
                missing[name] = str(error)
    return Results(readings=readings, missing=missing)


def chosen(only: str | None) -> dict[str, Gateway]:
    """The gateways by name; the bare engine is always among them. ValueError for a wrong name."""
    known = {**GATEWAYS, **EXPOSED}
    if only is None:
        return GATEWAYS
    names = [ENGINE, *(name for name in only.split(",") if name != ENGINE)]
    if wrong := [name for name in names if name not in known]:
        raise ValueError(f"unknown: {', '.join(wrong)}; there are {', '.join(known)}")
    return {name: known[name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="under half the time for each load")
    parser.add_argument("--only", help="names, separated by commas; the engine is always measured")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    try:
        gateways = chosen(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as directory:
        results = compare(gateways, plan=loads(quick=arguments.quick), directory=Path(directory))
    print(results.text())
    for name in EXPOSED.keys() - gateways.keys():
        print(f"not measured: {name}: listens on every interface; ask for it with --only")
    if arguments.json:
        document = json.dumps(results.document(), indent=2)
        arguments.json.write_text(document + "\n", encoding="utf-8")
    sys.exit(OURS in gateways and OURS not in results.readings)


if __name__ == "__main__":
    main()
