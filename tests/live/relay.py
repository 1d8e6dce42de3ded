"""One address for what moves, as of a Kubernetes Service: connections go where it is now."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from tests.live.instance import free_port


class Relay:
    """`at`: where each thing is reached, host:port, wherever it is."""

    def __init__(self, address: str, *names: str) -> None:
        self._ports = {name: free_port() for name in names}
        self._address = address
        self._targets: dict[str, tuple[str, int]] = {}
        self.at = {name: f"{address}:{port}" for name, port in self._ports.items()}

    def lead(self, name: str, host: str, port: int) -> None:
        """It is there from now on."""
        self._targets[name] = (host, port)

    async def run(self, listening: threading.Event) -> None:
        """Until it is cancelled."""
        async with contextlib.AsyncExitStack() as servers:
            for name, port in self._ports.items():
                await servers.enter_async_context(
                    await asyncio.start_server(
                        lambda reader, writer, name=name: self._carry(name, reader, writer),
                        self._address,
                        port,
                    )
                )
            listening.set()
            await asyncio.Event().wait()

    async def _carry(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(writer.close)
            with contextlib.suppress(OSError, KeyError):  # nothing is there, or nothing any more
                inner_reader, inner_writer = await asyncio.open_connection(*self._targets[name])
                ends.callback(inner_writer.close)
                await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.contextmanager
def relay(address: str, *names: str) -> Iterator[Relay]:
    """One that listens, in a thread of its own, while the context lasts."""
    made, listening = Relay(address, *names), threading.Event()
    loop = asyncio.new_event_loop()
    running = loop.create_task(made.run(listening))

    def run() -> None:
        with (
            asyncio.Runner(loop_factory=lambda: loop) as runner,
            contextlib.suppress(asyncio.CancelledError),
        ):
            runner.run(_ended(running))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert listening.wait(timeout=10)
        yield made
    finally:
        loop.call_soon_threadsafe(running.cancel)
        thread.join(timeout=10)


async def _ended(task: asyncio.Task[None]) -> None:
    await task
