"""A real engine is measured, its times are read back, and a trace is replayed on it."""

from __future__ import annotations

import asyncio
import gc

import psutil
import pytest

from cluster.calibration.live_file import read_live
from cluster.sim.measured_times import MeasuredTimes
from cluster.traces.request import TraceRequest
from serving.bundled import HEAVY, bundled_path
from serving.engine.live_engine import LiveEngine, LiveSettings
from serving.engine.live_grid import DecodeCell, PromptCell
from serving.engine.live_measure import live_file, measure
from serving.engine.live_replay import replay

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    # Of vLLM's and torch's own making.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),
]

CELLS = [
    PromptCell(tokens=16),
    PromptCell(tokens=64),
    PromptCell(tokens=128),
    PromptCell(tokens=300),
    DecodeCell(sequences=1, prompt=16, steps=6),
    DecodeCell(sequences=2, prompt=16, steps=6, probes=(48, 200)),
    DecodeCell(sequences=4, prompt=16, steps=6),
]
TRACE = [
    TraceRequest(arrival_s=0.1 * number, prompt_tokens=8 + number, output_tokens=1 + number % 7)
    for number in range(20)
]


async def test_an_engine_is_measured_and_replayed_and_gone_afterwards(tmp_path):
    settings = LiveSettings(
        model=bundled_path(HEAVY), max_num_seqs=4, max_model_len=512, chunk=128, kv_bytes=2**28
    )
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    async with LiveEngine.start(settings) as engine:
        samples = await measure(engine, CELLS, budget_s=15.0, tell=lambda text: None)
        file = live_file(engine, samples, date="2025-01-01", measured_s=15.0)
        records = await replay(engine, TRACE)
        await cancelled_replay(engine)
        again = await replay(engine, TRACE[:2])
    gc.collect()  # what vLLM leaves to the collector is found here, and not by a later test
    path = tmp_path / "live.yaml"
    path.write_text(file.dumps())

    assert read_live(path) == file
    assert {point.kind for point in file.points} == {"decode", "prompt", "mixed"}
    assert file.provenance.async_scheduling is False
    assert file.front.client_over_engine == pytest.approx(1.0, abs=0.2)
    assert file.fitted.residuals.median < 0.3  # others compute on these cores, too
    times = MeasuredTimes.of(file)
    assert 0.0 < times.decode_s(1, 20, 1) < times.mixed_s(1, 20, [], 1) + 1e-9
    assert [record.output_tokens for record in records] == [each.output_tokens for each in TRACE]
    assert [record.prompt_tokens for record in records] == [each.prompt_tokens for each in TRACE]
    for record in records:
        assert record.arrival_s <= record.sent_s < record.first_token_s <= record.finish_s
        assert 0.0 <= record.tpot_s <= record.e2e_s
    assert len(again) == 2
    gone = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not [pid for pid in gone if "resource_tracker" not in command_line(pid)]


async def cancelled_replay(engine: LiveEngine) -> None:
    """Cancelled while long requests run: they are aborted, and the next replay is not behind."""
    long = [TraceRequest(arrival_s=0.0, prompt_tokens=16, output_tokens=400) for _ in range(4)]
    task = asyncio.create_task(replay(engine, long))
    await asyncio.sleep(2.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def command_line(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return "resource_tracker"  # gone between two looks
