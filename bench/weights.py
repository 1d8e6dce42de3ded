"""How fast do weights reach a node, and what does that cost?

    python bench/weights.py [--quick] [--json FILE] [--gigabytes N] [--folder DIRECTORY]

A synthetic model of several files is brought from one node to others of a Ray cluster on this
machine, each with a raylet, an object store and a cache of its own:

    copy        the same files by `shutil.copytree` (sendfile) from one folder to another
    stream      the same bytes over a loopback connection by sendfile, read and thrown away
    fetch       one node fetches from the one that has them: hashed, verified, written
    broadcast   two nodes more fetch at once from the two that have them by then

then the files are read as an engine does, mapped, page by page: with nothing of them in the page
cache, after they were asked for by `read_ahead`, and again, as a node's second replica does. MB are
10^6 bytes. CPU seconds are those of all of Ray's processes and ours; peak memory is of the process
that fetches and of its store, beside Ray's shared object store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
os.environ["PYTHONPATH"] = str(REPOSITORY)
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="1")

from serving.messages import EngineSpec  # noqa: E402  # after the path is set
from serving.weights.manifest import scan  # noqa: E402
from serving.weights.read_ahead import read_ahead  # noqa: E402
from serving.weights.spec import WeightsSpec, model_key  # noqa: E402

NAMESPACE = "weights"
FILES = 8
_BLOCK = 4 * 1024 * 1024


def make_model(directory: Path, *, size: int) -> Path:
    """Files of random bytes, `size` in all."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    random = np.random.default_rng(0)
    for number in range(FILES):
        with (directory / f"model-{number}.safetensors").open("wb") as file:
            for _ in range(size // FILES // _BLOCK):
                file.write(random.bytes(_BLOCK))
    return directory


def drop(directory: Path) -> None:
    """Out of the page cache: written first, then given up."""
    for path in directory.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_mapped(directory: Path) -> None:
    """Touch every page through a mapping, in order."""
    for path in sorted(directory.glob("*.safetensors")):
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            pages = np.frombuffer(mapped, dtype=np.uint8)[:: mmap.PAGESIZE]
            int(pages.sum())
            del pages  # or the mapping could not be closed


def stream(directory: Path) -> None:
    """Send every file over loopback and throw it away."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            connection, _ = server.accept()
            with connection:
                for path in sorted(directory.glob("*.safetensors")):
                    with path.open("rb") as file:
                        connection.sendfile(file)

        thread = threading.Thread(target=send)
        thread.start()
        with socket.create_connection(server.getsockname()) as connection:
            buffer = bytearray(1024 * 1024)
            while connection.recv_into(buffer):
                pass
        thread.join()


class Replica:
    """Does what a replica does before its engine starts."""

    async def start(self, spec: EngineSpec) -> tuple[str, float, float]:
        """Where the weights are, the seconds it took, the process's peak memory in MB."""
        from serving.weights.replica_source import local_source

        began_s = time.monotonic()
        found = await local_source(spec)
        spent_s = time.monotonic() - began_s
        await asyncio.sleep(1.0)  # its store is told beside
        return found, spent_s, _peak_mb(os.getpid())


def _peak_mb(pid: int) -> float:
    line = next(
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1000


class Machines:
    """Nodes on this machine."""

    def __init__(self, folder: Path) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._folder = folder
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 512 * 1024 * 1024}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(self._cluster.address, namespace=NAMESPACE, log_to_driver=False)

    def add(self, name: str) -> str:
        """Its id."""
        node = self._cluster.add_node(
            num_cpus=1,
            object_store_memory=512 * 1024 * 1024,
            env_vars={"SHARDWISE_HOME": str(self._folder / name)},
        )
        return str(node.node_id)

    def replica(self, node: str) -> Any:
        """A process on a node."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(Replica).options(num_cpus=0, scheduling_strategy=where).remote()

    def close(self) -> None:
        """End all of it."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def spec(source: Path, *, key: str, head: str) -> EngineSpec:
    """A replica's orders."""
    return EngineSpec(
        pool="main",
        model_name="m",
        model_source=str(source),
        engine_args={},
        device_kind="cpu",
        bundles=({"CPU": 1.0},),
        controller="none",
        namespace=NAMESPACE,
        link_secret="bench",
        weights=WeightsSpec(key=key, namespace=NAMESPACE, head=head),
    )


def cpu_s() -> dict[int, float]:
    """CPU seconds of this process and all below it."""
    found = {}
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[process.pid] = times.user + times.system
    return found


def spent(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and CPU seconds."""
    before, began_s = cpu_s(), time.monotonic()
    work()
    took_s, after = time.monotonic() - began_s, cpu_s()
    return took_s, sum(used - before.get(pid, 0.0) for pid, used in after.items())


def transfers(original: Path, folder: Path, *, size: int) -> dict[str, float]:
    """MB/s, CPU seconds a GB and peak MB of copy, stream, fetch and broadcast."""
    import ray

    from serving.weights.cluster import store_name

    result: dict[str, float] = {}

    def note(name: str, took_s: float, used_s: float, times: int = 1) -> None:
        result[f"{name}_mb_per_s"] = times * size / 1e6 / took_s
        result[f"{name}_cpu_s_per_gb"] = used_s / (times * size / 1e9)

    note("copy", *spent(lambda: shutil.copytree(original, folder / "copy")))
    shutil.rmtree(folder / "copy")
    note("stream", *spent(lambda: stream(original)))
    machines = Machines(folder)
    try:
        first = machines.add("first")
        holder = machines.replica(first)
        others = [machines.replica(machines.add(f"other-{number}")) for number in range(3)]

        def model(place: Path) -> tuple[EngineSpec, EngineSpec]:
            """Orders for a node that has it and for one that does not."""
            key, head = model_key(str(place)), store_name(first)
            sources = (place, folder / "not-here")
            return tuple(spec(source, key=key, head=head) for source in sources)

        # Stores are started and code is imported with a model of a few bytes.
        here, elsewhere = model(make_model(folder / "tiny", size=0))
        ray.get(holder.start.remote(here))
        ray.get([other.start.remote(elsewhere) for other in others])

        here, elsewhere = model(original)
        found, took_s, _ = ray.get(holder.start.remote(here))
        result["already_there_s"] = took_s
        assert found == str(original)
        got: list[Any] = []
        took_s, used_s = spent(lambda: got.append(ray.get(others[0].start.remote(elsewhere))))
        note("fetch", got[0][1], used_s)
        result["fetch_peak_mb"] = got[0][2]
        result["store_peak_mb"] = _store_peak_mb()
        took_s, used_s = spent(
            lambda: got.extend(ray.get([other.start.remote(elsewhere) for other in others[1:]]))
        )
        note("broadcast", max(spent_s for _, spent_s, _ in got[1:]), used_s, times=2)
    finally:
        machines.close()
    return result


def _store_peak_mb() -> float:
    peaks = [
        _peak_mb(process.pid)
        for process in psutil.Process().children(recursive=True)
        if any("WeightStore" in word for word in process.cmdline())
    ]
    return max(peaks)


def page_cache(original: Path, *, size: int) -> dict[str, float]:
    """Seconds to read all weights through a mapping, by where they are."""
    drop(original)
    cold_s, _ = spent(lambda: read_mapped(original))
    warm_s, _ = spent(lambda: read_mapped(original))
    drop(original)
    asked_s = read_ahead(original)
    ahead_s, _ = spent(lambda: read_mapped(original))
    again_s = read_ahead(original)
    assert asked_s is not None
    assert again_s is not None
    return {
        "cold_read_s": cold_s,
        "cold_read_mb_per_s": size / 1e6 / cold_s,
        "warm_read_s": warm_s,
        "warm_read_mb_per_s": size / 1e6 / warm_s,
        "read_ahead_asked_s": asked_s,
        "read_after_read_ahead_s": ahead_s,
        "read_ahead_of_what_is_there_s": again_s,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of a gigabyte")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    arguments = parser.parse_args()
    gigabytes = 0.25 if arguments.quick else arguments.gigabytes
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        original = make_model(Path(folder) / "original", size=int(gigabytes * 1e9))
        size = scan(original).size
        result = {"gb": size / 1e9, **page_cache(original, size=size)}
        result |= transfers(original, Path(folder), size=size)
    for name, value in result.items():
        print(f"{name:32} {value:10.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
