import io

from rich.console import Console

from cli.status_nodes import show_nodes
from serving.keeper.account import Kept, Swept


def shown(kept: Kept) -> list[str]:
    stream = io.StringIO()
    show_nodes(kept.in_public(), console=Console(file=stream, width=200))
    return stream.getvalue().splitlines()


def test_where_all_is_well_nothing_is_said() -> None:
    assert shown(Kept()) == []


def test_trouble_placements_and_sweeps_are_told() -> None:
    kept = Kept(
        trouble={"10.0.0.1": "NVML: Unknown Error"},
        unmet={"main": "bundle {'GPU': 4} of pool main fits no node"},
    )
    core = Swept(
        pid=7,
        name="EngineCore",
        replica_id="abc",
        host_bytes=2.0**31,
        device_bytes=float("nan"),
        age_s=90.0,
    )
    kept.swept.append(core)
    kept.counts["placement_groups"] = 2
    assert shown(kept) == [
        "node        10.0.0.1: NVML: Unknown Error",
        "unplaced    bundle {'GPU': 4} of pool main fits no node",
        "swept       EngineCore (pid 7), left of replica abc, 2.00 GiB, 90 s old",
        "swept       2 placement group(s) of replicas that are gone",
    ]
