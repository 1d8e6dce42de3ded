"""Measured step times: fitted to what they were made from, monotone, and on disk as in memory."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.calibration.live_file import (
    DecodePoint,
    Fitted,
    Front,
    Knots,
    LiveFile,
    MixedPoint,
    Point,
    PromptPoint,
    Provenance,
    Residuals,
    read_live,
)
from cluster.calibration.live_fit import fit_front, fit_live
from cluster.errors import ConfigError, InputError
from cluster.sim.measured_times import MeasuredTimes
from cluster.sim.times import Piece

CHUNK = 512
NO_RESIDUALS = Residuals(median=0.0, worst=0.0, worst_point="none")
TRUTH = Fitted(
    decode=Knots(at=[1, 2, 4, 8, 16], seconds=[0.048, 0.050, 0.052, 0.055, 0.075]),
    prompt=Knots(at=[1, 16, 64, 256, 512], seconds=[0.048, 0.064, 0.17, 0.58, 1.2]),
    sequence_s=4e-4,
    context_token_s=4.8e-6,
    pair_s=6e-7,
    residuals=NO_RESIDUALS,
)
FRONT = Front(
    into_s=1e-3,
    into_token_s=5e-7,
    out_s=1.5e-3,
    out_spread_s=1e-4,
    client_over_engine=1.0,
    samples=100,
)
PROVENANCE = Provenance(
    model="synthetic",
    engine="vllm 0",
    device="none",
    threads=1,
    date="2025-01-01",
    measured_s=1.0,
    async_scheduling=False,
    kv_tokens=10_000,
    max_num_seqs=16,
    max_model_len=2048,
    chunk=CHUNK,
)


def file_of(fitted: Fitted, points: list[Point] | None = None) -> LiveFile:
    some = points or [DecodePoint(sequences=1, context=10, seconds=0.05, spread=0.0, samples=1)]
    return LiveFile(provenance=PROVENANCE, points=some, front=FRONT, fitted=fitted)


def seconds(times: MeasuredTimes, point: Point) -> float:
    return sum(
        times.mixed_s(
            step.sequences,
            step.context,
            [Piece(each.tokens, each.start, each.tokens) for each in step.chunks],
            0,
        )
        for step in point.steps(CHUNK)
    )


def synthetic(times: MeasuredTimes) -> list[Point]:
    """A grid's points as an engine with these times would give them, without noise."""
    told = {"seconds": 1.0, "spread": 0.01, "samples": 3}
    points: list[Point] = [
        DecodePoint(sequences=batch, context=batch * each, **told)
        for batch in (1, 2, 4, 8, 16)
        for each in (30, 500)
    ]
    points += [PromptPoint(tokens=tokens, **told) for tokens in (16, 64, 256, 512, 1024, 2000)]
    points += [
        MixedPoint(sequences=batch, context=batch * 40.0, tokens=tokens, start=start, **told)
        for batch in (1, 4, 8)
        for tokens, start in ((48, 0), (250, 0), (250, 500))
    ]
    return [point.model_copy(update={"seconds": seconds(times, point)}) for point in points]


def disturbed(point: Point, factor: float) -> Point:
    return point.model_copy(update={"seconds": point.seconds * factor})


def test_a_fit_recovers_what_the_measurements_were_made_from():
    times = MeasuredTimes.of(file_of(TRUTH))
    found = fit_live(synthetic(times), chunk=CHUNK)
    assert found.residuals.worst < 1e-3
    assert found.decode.seconds == pytest.approx(TRUTH.decode.seconds, rel=1e-3)
    assert found.prompt.seconds == pytest.approx(TRUTH.prompt.seconds, rel=1e-2)
    assert found.context_token_s == pytest.approx(TRUTH.context_token_s, rel=1e-2)
    assert found.pair_s == pytest.approx(TRUTH.pair_s, rel=1e-2)
    assert found.sequence_s == pytest.approx(TRUTH.sequence_s, rel=2e-2)


def test_a_disturbed_measurement_pulls_little():
    times = MeasuredTimes.of(file_of(TRUTH))
    points = synthetic(times)
    points[11] = disturbed(points[11], 1.5)
    found = fit_live(points, chunk=CHUNK)
    others = [point for number, point in enumerate(points) if number != 11]
    fitted = MeasuredTimes.of(file_of(found))
    errors = sorted(abs(seconds(fitted, point) / point.seconds - 1.0) for point in others)
    assert errors[len(errors) // 2] < 0.01
    assert found.residuals.worst_point == points[11].name


def test_times_agree_with_the_residuals_the_fit_reports():
    times = MeasuredTimes.of(file_of(TRUTH))
    points = [
        disturbed(point, 1.0 + 0.03 * (-1) ** number)
        for number, point in enumerate(synthetic(times))
    ]
    found = fit_live(points, chunk=CHUNK)
    fitted = MeasuredTimes.of(file_of(found))
    worst = max(abs(seconds(fitted, point) / point.seconds - 1.0) for point in points)
    assert worst == pytest.approx(found.residuals.worst, rel=0.05)


def test_too_few_points_are_refused():
    only = [PromptPoint(tokens=64, seconds=0.1, spread=0.0, samples=1)]
    with pytest.raises(InputError, match="measure longer"):
        fit_live(only, chunk=CHUNK)
    with pytest.raises(InputError, match="measure longer"):
        fit_front([], [], out_s=[], client_over_engine=1.0)


def test_the_front_end_is_a_line_over_prompt_tokens():
    prompts = [16, 64, 256, 1024, 2000]
    entered = [1e-3 + 4e-7 * tokens for tokens in prompts]
    front = fit_front(prompts, entered, out_s=[1e-3, 2e-3, 3e-3], client_over_engine=1.0)
    assert (front.into_s, front.into_token_s) == pytest.approx((1e-3, 4e-7), rel=1e-3)
    assert front.out_s == pytest.approx(2e-3)


def test_a_batch_that_is_slower_than_a_larger_one_stays_so():
    decode = Knots(at=[1, 2, 4, 8], seconds=[0.048, 0.056, 0.042, 0.055])
    times = MeasuredTimes.of(file_of(TRUTH.model_copy(update={"decode": decode})))
    assert [times.decode_s(batch, 0, 0) for batch in (2, 4)] == pytest.approx([0.056, 0.042])


numbers = st.floats(1e-4, 1.0)
PIECES = st.lists(
    st.builds(Piece, st.integers(1, 600), st.integers(0, 1500), st.just(2100)), max_size=3
)


@st.composite
def fits(draw: st.DrawFn) -> MeasuredTimes:
    def knots() -> Knots:
        at = sorted({1, *draw(st.lists(st.integers(2, 600), max_size=5))})
        return Knots(at=at, seconds=sorted(draw(numbers) for _ in at))

    slopes = st.floats(0.0, 1e-4)
    decode, prompt = knots(), knots()
    alone = {"seconds": [decode.seconds[0], *prompt.seconds[1:]]}
    rising = prompt.model_copy(update={"seconds": sorted(alone["seconds"])})
    return MeasuredTimes.of(
        file_of(
            Fitted(
                decode=decode,
                prompt=rising,
                sequence_s=draw(slopes),
                context_token_s=draw(slopes),
                pair_s=draw(slopes),
                residuals=NO_RESIDUALS,
            )
        )
    )


@given(fits(), st.integers(0, 40), st.integers(0, 30_000), PIECES, st.data())
def test_more_work_takes_no_less_time_where_the_measured_times_rise(
    times, sequences, context, pieces, data
):
    def slower(later: float, earlier: float) -> None:
        assert later >= earlier * (1.0 - 1e-9)

    before = times.mixed_s(sequences, context, pieces, 0)
    slower(times.mixed_s(sequences + 1, context, pieces, 0), before)
    slower(times.mixed_s(sequences, context + 7, pieces, 0), before)
    slower(times.mixed_s(sequences, context, [*pieces, Piece(3, 0, 3)], 0), before)
    slower(before, times.decode_s(sequences, context, 0))
    if pieces:
        first, *rest = pieces
        more = data.draw(st.sampled_from(["tokens", "start"]))
        grown = first._replace(**{more: getattr(first, more) + 1})
        slower(times.mixed_s(sequences, context, [grown, *rest], 0), before)
    slower(times.lag_s(sequences + 1, 1), times.lag_s(sequences, 1))


def test_a_file_comes_back_as_it_was(tmp_path):
    file = file_of(TRUTH, synthetic(MeasuredTimes.of(file_of(TRUTH))))
    path = tmp_path / "live.yaml"
    path.write_text(file.dumps())
    assert read_live(path) == file


@pytest.mark.parametrize(
    ("where", "value", "field"),
    [
        (("format",), 2, "format"),
        (("fitted", "pair_s"), -1.0, "fitted.pair_s"),
        (("fitted", "decode", "at"), [1, 4, 2, 8, 16], "fitted.decode"),
        (("fitted", "decode", "at"), [1, 2], "fitted.decode"),
        (("fitted", "decode", "at"), [2, 3, 4, 8, 16], "fitted.decode"),
        (("front", "into_s"), "soon", "front.into_s"),
        (("provenance", "chunk"), 0, "provenance.chunk"),
        (("points",), [], "points"),
    ],
)
def test_a_broken_file_names_its_field(tmp_path, where, value, field):
    data = file_of(TRUTH).model_dump(mode="json")
    inner = data
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    path = tmp_path / "live.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=r"live\.yaml") as caught:
        read_live(path)
    assert caught.value.field == field
    assert "calibrate --live" in str(caught.value)


@pytest.mark.parametrize("text", ["points: [", None])
def test_what_is_no_file_says_so(tmp_path, text):
    path = tmp_path / "live.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="calibrate --live"):
        read_live(path)
