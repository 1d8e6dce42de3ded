import asyncio
import threading

from serving.offload import INLINE_BYTES, OffLoop


async def test_small_work_is_done_in_place_and_large_work_elsewhere() -> None:
    off_loop = OffLoop()
    here = threading.get_ident()
    assert await off_loop.run(threading.get_ident, size_bytes=INLINE_BYTES) == here
    assert await off_loop.run(threading.get_ident, size_bytes=INLINE_BYTES + 1) != here


async def test_large_work_does_not_hold_the_loop_up() -> None:
    off_loop = OffLoop()
    released = threading.Event()
    slow = asyncio.create_task(off_loop.run(lambda: released.wait(5), size_bytes=10**6))
    await asyncio.sleep(0.01)
    assert not slow.done()
    released.set()
    assert await slow
