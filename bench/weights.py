"""How fast do weights reach a node, and what does that cost?

    python bench/weights.py [--quick] [--json FILE] [--gigabytes N] [--folder DIRECTORY]

A synthetic model of several files is brought from one node to others of a Ray cluster on this
machine, each with a raylet, an object store and a cache of its own:

    copy        the same files by `shutil.copytree` (sendfile) from one folder to another
    stream      the same bytes over a loopback connection by sendfile, read and thrown away
    objects     the same bytes from one node to another as objects of Ray's store, thrown away
    door        the same bytes from one node to another by the store's own connection, thrown away
    fetch       one node fetches from the one that has them: hashed, verified, written
    broadcast   two nodes more fetch at once from the two that have them by then

then the files are read as an engine does, mapped, page by page: with nothing of them in the page
cache; 5 s after the kernel was asked for them (POSIX_FADV_WILLNEED); and after `read_ahead`, which
is also how the second replica of a node finds them. MB are 10^6 bytes. CPU seconds are those of all
of Ray's processes and ours; peak memory is of the process that fetches and of the store it
reads from.
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
_IMPORT_S = 5.0  # an engine reads weights only after it has imported its code
_OBJECT = 32 * 1024 * 1024
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


def ask_for(directory: Path) -> None:
    """Tell the kernel that the files will be needed; it reads them meanwhile."""
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            for offset in range(0, path.stat().st_size, _BLOCK):
                os.posix_fadvise(file.fileno(), offset, _BLOCK, os.POSIX_FADV_WILLNEED)


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


class Bytes:
    """Gives files as objects, or reads files from elsewhere and throws them away."""

    def chunk(self, path: str, offset: int) -> np.ndarray:
        """A part of a file."""
        return np.fromfile(path, dtype=np.uint8, count=_OBJECT, offset=offset)

    def read_objects(self, source: Any, directory: str) -> None:
        """All files, four objects on their way."""
        import ray

        coming: list[Any] = []
        for file in scan(Path(directory)).files:
            for offset in range(0, file.size, _OBJECT):
                coming.append(source.chunk.remote(f"{directory}/{file.name}", offset))
                if len(coming) == 4:
                    ray.get(coming.pop(0))
        ray.get(coming)

    async def read_door(self, store: Any, key: str, directory: str) -> None:
        """All files, four reads on their way."""
        from serving.weights.door import Read
        from serving.weights.reader import DoorReader
        from serving.weights.receive import CHUNK

        door, manifest = DoorReader(await store.address.remote()), scan(Path(directory))
        turn = asyncio.Semaphore(4)

        async def read(name: str, offset: int) -> None:
            async with turn:
                await door.read(Read(key, manifest.version, name, offset, CHUNK, "bench"))

        for file in manifest.files:
            await asyncio.gather(*(read(file.name, at) for at in range(0, file.size, CHUNK)))
            await store.done.remote(key, file.name, "bench")
        door.close()


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

    def process(self, kind: type, node: str) -> Any:
        """A process on a node."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(kind).options(num_cpus=0, scheduling_strategy=where).remote()

    def close(self) -> None:
        """End all of it."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def spec(source: Path, *, key: str) -> EngineSpec:
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
        weights=WeightsSpec(key=key, namespace=NAMESPACE, arbiter="none"),
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
        holder = machines.process(Replica, first)
        nodes = [machines.add(f"other-{number}") for number in range(3)]
        others = [machines.process(Replica, node) for node in nodes]

        def model(place: Path) -> tuple[EngineSpec, EngineSpec]:
            """Orders for a node that has it and for one that does not."""
            key = model_key(str(place))
            sources = (place, folder / "not-here")
            return tuple(spec(source, key=key) for source in sources)

        # Stores are started and code is imported with a model of a few bytes.
        here, elsewhere = model(make_model(folder / "tiny", size=0))
        ray.get(holder.start.remote(here))
        ray.get([other.start.remote(elsewhere) for other in others])

        here, elsewhere = model(original)
        found, took_s, _ = ray.get(holder.start.remote(here))
        result["already_there_s"] = took_s
        assert found == str(original)
        store, key = ray.get_actor(store_name(first)), model_key(str(original))
        while ray.get(store.offer.remote(key)) is None:
            time.sleep(0.1)

        source, sink = machines.process(Bytes, first), machines.process(Bytes, nodes[0])
        ray.get([source.__ray_ready__.remote(), sink.__ray_ready__.remote()])
        through = sink.read_objects.remote
        note("objects", *spent(lambda: ray.get(through(source, str(original)))))
        through = sink.read_door.remote
        note("door", *spent(lambda: ray.get(through(store, key, str(original)))))
        ray.kill(source)
        ray.kill(sink)

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
    """Reading all weights through a mapping, by where they are; the best of three."""
    read: dict[str, list[tuple[float, float]]] = {"cold": [], "asked_for": [], "read_ahead": []}
    ahead, again = [], []
    for _ in range(3):
        drop(original)
        read["cold"].append(spent(lambda: read_mapped(original)))
        drop(original)
        ask_for(original)
        time.sleep(_IMPORT_S)
        read["asked_for"].append(spent(lambda: read_mapped(original)))
        drop(original)
        ahead.append(read_ahead(original))
        read["read_ahead"].append(spent(lambda: read_mapped(original)))
        again.append(read_ahead(original))
    result = {"read_ahead_s": min(ahead), "read_ahead_again_s": min(again)}
    for name, times in read.items():
        took_s, used_s = min(times)
        result[f"{name}_read_mb_per_s"] = size / 1e6 / took_s
        result[f"{name}_read_cpu_s_per_gb"] = used_s / (size / 1e9)
    return result


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
