"""Gaps of a live engine are sorted into decode and mixed steps; cells stay within the engine."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.priority import Priority
from cluster.traces.request import TraceRequest
from serving.engine.live_engine import Heard
from serving.engine.live_grid import (
    DecodeCell,
    Limits,
    PromptCell,
    full_cells,
    powers,
    quick_cells,
)
from serving.engine.live_measure import Samples, sift
from serving.engine.live_replay import ReplayRecord, prompt_of

CHUNK = 100
DECODE_S, LATE_S = 0.05, 0.002


def heard(stamps: list[float], *, prompt: int = 16, scheduled_s: float = 0.0) -> Heard:
    return Heard(
        prompt_tokens=prompt,
        sent_s=scheduled_s,
        queued_s=scheduled_s,
        scheduled_s=scheduled_s,
        stepped_s=tuple(stamps),
        heard_s=tuple(at + LATE_S for at in stamps),
        tokens=len(stamps),
    )


def run(gaps: list[float], *, probe: int, at: int, chunks: int) -> Samples:
    """Two sequences decode with these gaps; a probe is in `chunks` of them from number `at` on."""
    stamps = list(accumulate(gaps, initial=1.0))
    decoding = [heard(stamps), heard(stamps)]
    asked = heard([stamps[at + chunks]], prompt=probe, scheduled_s=stamps[at] + 1e-4)
    samples = Samples()
    cell = DecodeCell(sequences=2, prompt=16, steps=8, probes=(probe,))
    sift(samples, cell, decoding, [asked], chunk=CHUNK)
    return samples


def test_a_probe_of_two_chunks_stretches_two_steps():
    gaps = [DECODE_S] * 3 + [0.2, 0.15] + [DECODE_S] * 3
    samples = run(gaps, probe=150, at=3, chunks=2)
    assert [seconds for seconds, _ in samples.decode[2, 16]] == pytest.approx([DECODE_S] * 6)
    mixed = {key: seen[0][0] for key, seen in samples.mixed.items()}
    assert mixed == pytest.approx({(2, 16, 98, 0): 0.2, (2, 16, 52, 98): 0.15})
    assert samples.client_over_engine == pytest.approx([1.0])
    assert samples.out_s == pytest.approx([LATE_S] * 18)
    points = {point.kind: point for point in samples.points()}
    assert points["decode"].seconds == pytest.approx(DECODE_S)
    first = samples.mixed[2, 16, 98, 0][0]
    assert first[1] == 2 * (16 + 4)  # after three gaps each holds four tokens more


def test_a_probe_whose_steps_do_not_match_its_chunks_is_left_out():
    gaps = [DECODE_S] * 3 + [0.2, 0.15, 0.1] + [DECODE_S] * 3
    samples = run(gaps, probe=150, at=3, chunks=3)
    assert not samples.mixed
    assert len(samples.decode[2, 16]) == 6
    assert "3 steps for 2 chunks" in samples.notes[0]


@given(
    st.builds(
        Limits,
        sequences=st.integers(2, 300),
        length=st.integers(128, 9000),
        chunk=st.integers(32, 9000),
        kv_tokens=st.integers(200, 200_000),
    )
)
def test_cells_stay_within_the_engine(limits):
    for cells in (quick_cells(limits), full_cells(limits)):
        assert len(set(cells)) == len(cells)
        for cell in cells:
            match cell:
                case PromptCell():
                    assert cell.tokens < limits.length
                case DecodeCell():
                    assert cell.fits(limits)
                    assert cell.sequences <= limits.sequences


def test_the_usual_engine_is_measured_at_every_batch():
    limits = Limits(sequences=16, length=2048, chunk=512, kv_tokens=20_000)
    quick = [cell for cell in quick_cells(limits) if isinstance(cell, DecodeCell)]
    assert {cell.sequences for cell in quick} == {1, 2, 4, 8, 16}
    full = [cell for cell in full_cells(limits) if isinstance(cell, DecodeCell)]
    assert {cell.sequences for cell in full} == {1, 2, 3, 4, 6, 8, 12, 16}
    assert powers(6) == [1, 2, 4, 6]


def test_prompts_are_the_same_on_every_run_and_share_what_the_trace_shares():
    def ids(number: int, blocks: tuple[int, ...]) -> list[int]:
        request = TraceRequest(0.0, 40, 1, Priority.STANDARD, blocks, 16)
        return prompt_of(request, number=number, seed=1, vocabulary=1000)

    assert ids(0, (7, 8)) == ids(0, (7, 8))
    one, other = ids(0, (7, 8)), ids(1, (7, 9))
    assert one[:16] == other[:16]
    assert one[16:32] != other[16:32]
    assert len(one) == len(other) == 40


def test_a_record_counts_from_when_a_request_was_due():
    record = ReplayRecord(
        index=0,
        arrival_s=1.0,
        sent_s=1.5,
        first_token_s=2.0,
        finish_s=4.0,
        prompt_tokens=8,
        output_tokens=5,
    )
    assert (record.ttft_s, record.e2e_s, record.tpot_s) == (1.0, 3.0, 0.5)
