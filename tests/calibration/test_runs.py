from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.calibration.models import models_of
from cluster.calibration.runs import (
    COLUMNS,
    Spelling,
    count_spellings,
    normalised,
    read_degrees,
    read_predictions,
    read_runs,
    spelling,
)
from cluster.errors import ConfigError, InputError, UnknownNameError
from tests.calibration.samples import RUN, csv_text, run
from tests.shared_data import require_shared_data


@pytest.fixture
def written(tmp_path):
    def write(content: str | bytes):
        path = tmp_path / "runs.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_runs(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "Fix: " in message
    return message


def test_a_row_is_read_in_seconds(written):
    assert read_runs(written(csv_text({}))) == (RUN,)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_byte_order_marks_do_not_matter(written, end, mark):
    path = written(mark + csv_text({}, {"id": "b"}, end=end).encode())
    assert [found.id for found in read_runs(path)] == ["a", "b"]


def test_columns_come_in_any_order_and_unknown_ones_are_ignored(written):
    header, row = csv_text({}, columns=COLUMNS[::-1]).splitlines()
    assert read_runs(written(f"note,{header}\nfast,{row}\n")) == (RUN,)


def test_blank_lines_spaces_quotes_and_spreadsheet_numbers_are_read(written):
    text = csv_text({"tp": " 2.0 ", "id": '"a"', "ttft_ms": "1.205e2"})
    assert read_runs(written(text.replace("\n", "\n\n") + " , \n".replace(",", ""))) == (RUN,)


@pytest.mark.parametrize("missing", ["ttft_ms", "tpot_ms"])
def test_measured_cells_may_be_empty(written, missing):
    (found,) = read_runs(written(csv_text({missing: ""})))
    assert getattr(found, missing.replace("_ms", "_s")) is None


def test_degrees_that_fit_no_expert_grid_are_not_judged_here(written):
    (found,) = read_runs(written(csv_text({"tp": "8", "moe_ep": "3"})))
    assert (found.tp, found.moe_ep) == (8, 3)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_named(written, column):
    columns = tuple(name for name in COLUMNS if name != column)
    assert f"no column named {column};" in refusal(written(csv_text({}, columns=columns)))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tp", "two"),
        ("tp", "-4"),
        ("tp", "2.5"),
        ("tp", ""),
        ("tp", "1_0"),
        ("tp", "٣"),
        ("concurrency", "0"),
        ("isl", "1e3"),
        ("osl", "1" + "0" * 30),
        ("ttft_ms", "-1"),
        ("ttft_ms", "0"),
        ("ttft_ms", "nan"),
        ("tpot_ms", "inf"),
        ("tpot_ms", "1e999"),
        ("tpot_ms", "1_0"),
        ("tpot_ms", "fast"),
        ("id", ""),
        ("config", " "),
        ("system", ""),
        ("backend", ""),
    ],
)
def test_a_bad_cell_is_named_with_file_line_column_and_value(written, column, value):
    message = refusal(written(csv_text({"id": "x"}, {column: value})))
    assert f", line 3: field '{column}'" in message
    assert value.strip() in message


def test_the_line_counts_line_ends_inside_quotes(written):
    text = csv_text({"model": '"two\nlines"'}, {"id": "b", "tp": "x"})
    assert ", line 4: field 'tp'" in refusal(written(text))


def test_a_repeated_id_is_named_with_both_lines(written):
    message = refusal(written(csv_text({}, {"id": "b"}, {})))
    assert ", line 4: field 'id'" in message
    assert "line 2" in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (csv_text(), "no rows"),
        (csv_text({}).replace(",", ";"), "commas"),
        (csv_text({}).replace(",", "\t"), "commas"),
        (csv_text({}) + "a,b\n", "line 3: has 2 cells"),
        (csv_text({}).rstrip() + ",,\n", "line 2: has 21 cells"),
        (csv_text({"model": '"open'}), "line 2: is not CSV"),
        (csv_text({}).replace("id,", "id,id,", 1), "2 times"),
        (csv_text({}).encode() + b"\xff\xfe", "line 3: is not UTF-8"),
        (csv_text({}).encode("utf-16"), "is not UTF-8"),
        (b"\x00\x01\x02", "no column named"),
    ],
)
def test_a_file_that_is_no_table_is_refused(written, content, said):
    assert said in refusal(written(content))


def test_what_is_no_file_is_refused(tmp_path):
    assert "is a directory" in refusal(tmp_path)
    assert "cannot be read" in refusal(tmp_path / "absent.csv")


def test_predictions_hold_none_where_there_is_no_answer(tmp_path):
    path = tmp_path / "peer.csv"
    path.write_text("tpot_ms,id,ttft_ms\n10,a,250\n,b,\n")
    assert read_predictions(path) == {"a": (0.25, 0.01), "b": (None, None)}


@pytest.mark.parametrize(
    ("written_as", "read_as", "kind"),
    [
        ((1, 64, 8, 8), (1, 8, 1, 8), Spelling.DATA_PARALLEL_TWICE),
        ((1, 4, 2, 2), (1, 2, 1, 2), Spelling.DATA_PARALLEL_TWICE),
        ((4, 4, 1, 16), (4, 1, 1, 4), Spelling.TENSOR_PARALLEL_TWICE),
        ((2, 2, 1, 4), (2, 1, 1, 2), Spelling.TENSOR_PARALLEL_TWICE),
        ((1, 1, 1, 1), (1, 1, 1, 1), Spelling.PLAIN),
        ((1, 8, 1, 8), (1, 8, 1, 8), Spelling.PLAIN),
        ((1, 4, 4, 1), (1, 4, 4, 1), Spelling.PLAIN),
        ((8, 1, 2, 4), (8, 1, 2, 4), Spelling.PLAIN),
        ((4, 2, 1, 8), (4, 2, 1, 8), Spelling.PLAIN),
    ],
)
def test_degrees_counted_twice_are_read_once(written_as, read_as, kind):
    tp, dp, moe_tp, moe_ep = written_as
    found = run(tp=tp, attention_dp=dp, moe_tp=moe_tp, moe_ep=moe_ep)
    assert spelling(found) is kind
    assert read_degrees(found) == read_as
    assert found.devices == tp * dp


@given(
    degrees=st.tuples(*[st.integers(1, 64)] * 4),
    pp=st.integers(1, 4),
)
def test_reading_degrees_again_changes_nothing(degrees, pp):
    tp, dp, moe_tp, moe_ep = degrees
    once = normalised(run(tp=tp, pp=pp, attention_dp=dp, moe_tp=moe_tp, moe_ep=moe_ep))
    assert normalised(once) == once
    if spelling(run(tp=tp, attention_dp=dp, moe_tp=moe_tp, moe_ep=moe_ep)) is not Spelling.PLAIN:
        assert once.tp * once.attention_dp == once.moe_tp * once.moe_ep


def test_public_runs_prove_the_spellings():
    runs = read_runs(require_shared_data() / "silicon" / "runs.csv")
    assert len(runs) > 2000
    assert all(found.ttft_s and math.isfinite(found.ttft_s) for found in runs)
    counts = count_spellings(runs)
    assert sum(counts.values()) == len(runs)
    plain = defaultdict(list)
    for found in runs:
        if spelling(found) is Spelling.PLAIN:
            plain[condition(found)].append(found)
    for kind in (Spelling.DATA_PARALLEL_TWICE, Spelling.TENSOR_PARALLEL_TWICE):
        twice = [found for found in runs if spelling(found) is kind]
        assert len(twice) == counts[kind] > 0
        proven = [
            found
            for found in twice
            if any(same_values(found, other) for other in plain[condition(found)])
        ]
        assert len(proven) >= 10, f"too few {kind} runs have a plain one with their values"


def condition(found):
    """Workload, system, backend and layout as read: what a twin has to agree in."""
    blank = {"id": "", "model": "", "backend_version": "", "ttft_s": None, "tpot_s": None}
    return replace(normalised(found), **blank)


def same_values(one, other):
    # Some exports keep two digits of the milliseconds, others four.
    half_digit_s = 0.0051e-3
    return (
        abs(one.ttft_s - other.ttft_s) < half_digit_s
        and abs(one.tpot_s - other.tpot_s) < half_digit_s
    )


def test_models_come_from_the_catalogue_by_hub_id():
    find = models_of(None)
    assert find("openai--gpt-oss-20b").name == "gpt-oss-20b"
    with pytest.raises(InputError, match=r"config 'nobody--nothing'.*--models"):
        find("nobody--nothing")


def test_models_come_from_a_folder(tmp_path):
    (tmp_path / "org--small.json").write_text("{}")
    find = models_of(tmp_path)
    with pytest.raises(UnknownNameError, match=r"unknown config 'org--smal'.*Known: org--small"):
        find("org--smal")
    with pytest.raises(ConfigError, match=r"org--small\.json"):
        find("org--small")


def test_a_folder_without_models_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no \.json file"):
        models_of(tmp_path)
    with pytest.raises(InputError, match="cannot be listed"):
        models_of(tmp_path / "absent")
