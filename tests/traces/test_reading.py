"""Every schema is read; every kind of wrong row says where it is."""

from __future__ import annotations

import gzip
import itertools
import json

import psutil
import pytest

from cluster.errors import ConfigError, InputError, UnknownNameError
from cluster.traces.describe import describe
from cluster.traces.files import open_trace
from cluster.traces.formats import FORMATS
from cluster.traces.json_formats import chained
from cluster.traces.options import WindowOptions
from cluster.traces.timestamps import days_from_civil
from tests.shared_data import require_shared_data

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_ROWS = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:18:04.0319600,3180,8\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SERVEGEN = (
    "window_start_s,total_rate_rps,rate_weighted_cv,active_clients,"
    "mean_input_tokens,mean_output_tokens\n"
)


def mooncake(**changes):
    record = {"timestamp": 27, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
    return json.dumps(record | changes) + "\n"


def qwen(**changes):
    record = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40}
    record |= {"output_length": 5, "type": "text", "turn": 1, "hash_ids": [7, 8, 9]}
    return json.dumps(record | changes) + "\n"


@pytest.fixture
def write(tmp_path):
    def written(text, name="trace.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def read(path, **options):
    return list(open_trace(path, **options))


def test_azure(write):
    trace = open_trace(write(AZURE + AZURE_ROWS))
    first, second = trace
    assert (trace.format, trace.name) == ("azure", "trace.txt")
    assert first == (0.0, 4808, 10, "standard", (), 0)
    assert second.arrival_s == pytest.approx(60.052, abs=1e-9)
    assert list(trace) == [first, second]  # reads again


@pytest.mark.parametrize(
    ("first", "second", "gap_s"),
    [
        ("2023-12-31 23:59:59", "2024-01-01 00:00:00.5", 1.5),
        ("2024-02-28 23:59:59.5", "2024-03-01T00:00:00Z", 86_400.5),
        ("2023-02-28T23:59:00+00:00", "2023-03-01 00:00:00.25+00:00", 60.25),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.009931+00:00", 1e-6),
    ],
)
def test_azure_times_cross_days_months_and_years(write, first, second, gap_s):
    found = read(write(f"{AZURE}{first},1,1\n{second},1,1\n"))
    assert found[1].arrival_s == pytest.approx(gap_s, abs=1e-9)


def test_days_are_counted_from_1970():
    assert days_from_civil(1970, 1, 1) == 0
    assert days_from_civil(2000, 3, 1) == 11_017
    assert days_from_civil(2023, 11, 16) == 19_677


def test_columns_may_be_moved_added_quoted_and_preceded_by_a_mark(write):
    text = 'GeneratedTokens,Note,"TIMESTAMP",ContextTokens\r\n'
    text += '9,"a, b",2023-11-16 18:17:03, 7.0\r\n\r\n'
    (request,) = read(write(b"\xef\xbb\xbf" + text.encode()))
    assert (request.prompt_tokens, request.output_tokens) == (7, 9)


def test_burstgpt_skips_and_counts_failures(write):
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,30,0,30,API log\n118,x,7,9,16,y\n"
    trace = open_trace(write(BURSTGPT + rows))
    assert [r[:3] for r in trace] == [(0.0, 472, 18), (113.0, 7, 9)]
    assert trace.skipped == {"no output tokens": 1}
    assert list(trace)
    assert trace.skipped == {"no output tokens": 1}


def test_burstgpt_with_newer_columns(write):
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens\n"
    trace = open_trace(write(header + "1.5,3,0.2,GPT-4,10,20,30\n"))
    assert trace.format == "burstgpt"
    assert [r[:3] for r in trace] == [(0.0, 10, 20)]


def test_mooncake_keeps_ids_of_whole_blocks(write):
    found = read(write(mooncake() + "\n" + mooncake(timestamp=3027, hash_ids=[0, 3, 4])))
    assert found[0] == (0.0, 1100, 5, "standard", (0, 1), 512)
    assert (found[1].arrival_s, found[1].blocks) == (3.0, (0, 3))


def test_qwen_ids_stand_for_all_before(write):
    found = read(write(qwen() + qwen(timestamp=2, hash_ids=[1, 8, 9])))
    assert (found[1].arrival_s, found[0].block_tokens) == (0.5, 16)
    assert len(found[0].blocks) == 2
    # Block 8 after 7 and block 8 after 1 share nothing.
    assert not set(found[0].blocks) & set(found[1].blocks)
    assert chained([7, 8]) == chained([7, 8, 9])[:2]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("2023-11-16 18:17:05,x,10", "'x' is not a whole number"),
        ("2023-11-16 18:17:05,-4,10", "'-4' is not a whole number"),
        ("2023-11-16 18:17:05,4.5,10", "'4.5' is not"),
        ("2023-11-16 18:17:05,,10", "'' is not"),
        ("2023-11-16 18:17:05,1000000001,10", "10^9"),
        ("2023-11-16 18:17:05,0,10", "a prompt of 0 tokens"),
        ("2023-11-16 18:17:05,7", "has 2 cells where the first line has 3"),
        ("2023-11-16 18:17:02,7,7", "0.97996 s before the row above"),
        ("2023-13-16 18:17:05,7,7", "not a date and time"),
        ("2023-02-29 18:17:05,7,7", "not a date and time"),
        ("2023-11-16 25:17:05,7,7", "not a date and time"),
        ("2023-11-16 18:60:05,7,7", "not a date and time"),
        ("2023-11-16 18:17:61,7,7", "not a date and time"),
        ("2023-11-16 18:17:05+01:00,7,7", "not a date and time"),
        ("yesterday,7,7", "not a date and time"),
        ('"2023-11-16 18:17:05,7,7', "is not CSV"),
    ],
)
def test_wrong_azure_rows_say_where(write, row, says):
    rows = open_trace(write(f"{AZURE}2023-11-16 18:17:02.97996,1,1\n{row}\n"))
    with pytest.raises(ConfigError) as caught:
        list(rows)
    assert "trace.txt, line 3" in str(caught.value)
    assert says in str(caught.value)
    assert "Fix:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (mooncake()[:40] + "\n", "is not JSON"),
        ("[1]\n", "no object"),
        ("{}\n", "'timestamp': is missing"),
        (mooncake(timestamp=-1), "-1 is not a finite number"),
        (mooncake(timestamp=float("nan")), "nan is not a finite number"),
        (mooncake(timestamp=3), "before the row above"),
        (mooncake(input_length=0), "a prompt of 0 tokens"),
        (mooncake(input_length="many"), "'many' is not a whole number"),
        (mooncake(input_length=True), "True is not a whole number"),
        (mooncake(output_length=-5), "-5 is not a whole number"),
        (mooncake(hash_ids=None), "not a list of whole numbers"),
        (mooncake(hash_ids=["a"]), "not a list of whole numbers"),
        ("[" * 100_000 + "\n", "is not JSON"),
    ],
)
def test_wrong_json_rows_say_where(write, text, says):
    with pytest.raises(ConfigError) as caught:
        read(write(mooncake() + "\n" + text))
    assert "trace.txt, line 3" in str(caught.value)
    assert says in str(caught.value)


def test_whole_floats_are_counts_in_json(write):
    assert read(write(mooncake(input_length=1100.0)))[0].prompt_tokens == 1100


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("x,5,1,1,10,10", "'x' is not a finite number"),
        ("600,nan,1,1,10,10", "'nan' is not"),
        ("600,-1,1,1,10,10", "'-1' is not"),
        ("600,1e300,1,1,10,10", "too many"),
        ("0,5,1,1,10,10", "not after the window above"),
        ("600,5,1,1,0.0,10", "option prompt_tokens"),
        ("600,5,1,1,10,0.0", "option output_tokens"),
    ],
)
def test_wrong_windows_say_where(write, row, says):
    with pytest.raises(ConfigError) as caught:
        read(write(SERVEGEN + "0,0.1,1,1,10,10\n" + row + "\n"))
    assert "trace.txt, line 3" in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("row", ["yesterday,7,7", "2023-11-16 18:17:05,7", '"2023,7,7'])
def test_the_file_is_closed_while_an_error_about_it_is_held(write, row):
    path = write(f"{AZURE}2023-11-16 18:17:02.97996,1,1\n{row}\n{AZURE_ROWS * 1000}")
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert caught.value
    assert str(path) not in [file.path for file in psutil.Process().open_files()]


def test_the_file_is_closed_when_a_reader_has_enough(write):
    path = write(AZURE + AZURE_ROWS * 1000)
    rows = iter(open_trace(path))
    next(rows)
    assert str(path) in [file.path for file in psutil.Process().open_files()]
    rows.close()
    assert str(path) not in [file.path for file in psutil.Process().open_files()]


def test_windows_without_lengths_are_read_with_options(write):
    path = write(SERVEGEN + "0,5,2,1,0.0,0.0\n600,0,0,0,0,0\n")
    found = read(path, windows=WindowOptions(prompt_tokens=100, output_tokens=50))
    assert len(found) == 3000


def test_windows_become_their_requests(write):
    path = write(SERVEGEN + "1200,10,2,9,700,200\n1800,0,0,0,0,0\n2400,40,0.5,9,700,200\n")
    found = read(path)
    summary = describe(found)
    inside = [sum(s <= r.arrival_s <= s + 600 for r in found) for s in (0, 600, 1200)]
    assert inside == [6000, 0, 24_000]
    assert summary.prompt.mean == pytest.approx(700, rel=0.05)
    assert summary.output.mean == pytest.approx(200, rel=0.05)
    assert describe(found[:6000]).gap_cv == pytest.approx(2.0, rel=0.1)
    assert describe(found[6000:]).gap_cv == pytest.approx(0.5, rel=0.1)
    assert all(a.arrival_s <= b.arrival_s for a, b in itertools.pairwise(found))
    assert read(path) == found
    assert read(path, windows=WindowOptions(seed=1)) != found
    assert len(read(path, windows=WindowOptions(rate_factor=0.001))) == 30


def test_a_window_of_many_requests_streams_and_a_wild_cv_is_bounded(write):
    path = write(SERVEGEN + "0,1e6,847,9,700,200\n")
    trace = iter(open_trace(path))
    assert next(trace).arrival_s <= next(trace).arrival_s <= 600.0
    found = read(write(SERVEGEN + "0,10,847,9,700,200\n"), windows=WindowOptions(max_cv=1e9))
    assert len(found) == 6000
    assert found[-1].arrival_s <= 600.0


@pytest.mark.parametrize(
    "change",
    [
        {"rate_factor": 0.0},
        {"max_cv": float("nan")},
        {"prompt_tokens": 0.5},
        {"prompt_sigma": -1.0},
        {"seed": -1},
    ],
)
def test_wrong_window_options(change):
    with pytest.raises(InputError, match=next(iter(change))):
        WindowOptions(**change)


def test_zipped_files_are_read_whatever_their_name(write):
    packed = gzip.compress((AZURE + AZURE_ROWS).encode())
    assert len(read(write(packed, "trace.csv.gz"))) == 2
    assert len(read(write(packed, "trace.csv"))) == 2
    with pytest.raises(ConfigError, match="damaged or cut short"):
        read(write(packed[:-12]))


@pytest.mark.parametrize("text", ["", "\n  \n", b"\xef\xbb\xbf"])
def test_empty_files(write, text):
    with pytest.raises(ConfigError, match=r"empty|begins no known"):
        open_trace(write(text))


@pytest.mark.parametrize("text", [AZURE, BURSTGPT, SERVEGEN])
def test_files_without_rows(write, text):
    with pytest.raises(ConfigError, match="holds no rows"):
        read(write(text))


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            open_trace(path)


def test_bytes_that_are_no_text_have_a_line(write):
    with pytest.raises(ConfigError, match="line 4: is not UTF-8"):
        read(write((AZURE + AZURE_ROWS).encode() + b"\xff\xfe,1,1\n"))


def test_unknown_formats_list_the_known(write):
    with pytest.raises(ConfigError) as caught:
        open_trace(write("when,what\n1,2\n"))
    for known in FORMATS:
        assert f"{known.name}: {known.shape}" in str(caught.value)
    with pytest.raises(UnknownNameError, match="Did you mean azure"):
        open_trace(write(AZURE), format="azur")


def test_a_named_format_with_another_header(write):
    with pytest.raises(ConfigError, match="no column named Request tokens"):
        read(write("Timestamp,Tokens\n1,2\n"), format="burstgpt")


def test_no_first_line_is_of_two_formats():
    lines = (AZURE, BURSTGPT, SERVEGEN, mooncake(), qwen())
    assert [sum(known.detects(line) for known in FORMATS) for line in lines] == [1] * 5


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("AzureLLMInferenceTrace_code_2023.csv", 8_819),
        ("AzureLLMInferenceTrace_conv_2023.csv", 19_366),
        ("mooncake_conversation_trace.jsonl", 12_031),
    ],
)
def test_public_traces_are_read_whole(name, rows):
    path = require_shared_data() / "traces" / name
    if not path.is_file():
        pytest.skip(f"{name} is not at hand")
    trace = open_trace(path)
    summary = describe(trace)
    assert summary.requests == rows
    assert not trace.skipped
    if trace.format == "mooncake":
        assert summary.reused_blocks == pytest.approx(0.37, abs=0.02)
