from __future__ import annotations

import csv
import json

import pytest

from bench import published
from bench.published_models import bloom_176b, llama2_70b, published_model
from cluster.model.formats import NumberFormat
from tests.shared_data import require_shared_data

ROW = {
    "source": "https://example.org/TensorRT-LLM",
    "model": "Llama-3.1-8B",
    "gpu": "H100",
    "n_gpu": "2",
    "tp": "2",
    "pp": "1",
    "ep": "1",
    "dp": "1",
    "precision": "fp8",
    "isl": "1000",
    "osl": "200",
    "concurrency_or_batch": "max load (offline, all requests queued)",
    "metric": "output_throughput_per_gpu",
    "value": "5000",
    "unit": "output tokens/s/GPU",
}


def row(**changes: str) -> dict[str, str]:
    return {**ROW, **changes}


def test_units_of_a_metric_agree():
    per_gpu = published.predict(row())
    total = published.predict(row(metric="output_throughput_total"))
    assert total == pytest.approx(2 * per_gpu)
    load = {"concurrency_or_batch": "prefill only, 8192 tokens/device", "osl": "0"}
    device = published.predict(row(metric="prefill_throughput_per_gpu", **load))
    node = published.predict(row(metric="prefill_throughput_per_node8", **load))
    assert node == pytest.approx(8 * device)


def test_a_faster_device_and_a_shorter_prompt_are_predicted_faster():
    base = published.predict(row())
    assert published.predict(row(gpu="B200")) > base
    assert published.predict(row(isl="4000")) < base


def test_decode_alone_is_the_batch_over_its_step():
    asked = {"metric": "decode_throughput_per_gpu", "osl": "100"}
    few, many = (
        published.predict(row(**asked, concurrency_or_batch=f"decode only, {batch} seqs/GPU"))
        for batch in (64, 128)
    )
    assert few < many < 2 * few


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "DeepSeek-V9"}, "model DeepSeek-V9"),
        ({"gpu": "MI355X"}, "device MI355X"),
        ({"tp": ""}, "layout is not stated"),
        ({"n_gpu": "disagg"}, "layout is not stated"),
        ({"n_gpu": "8"}, "not the number of GPUs"),
        ({"isl": "OpenOrca"}, "lengths are not stated"),
        ({"precision": "fp4+MTP"}, "speculative"),
        ({"metric": "throughput_ratio A vs B"}, "ratio"),
        ({"concurrency_or_batch": "", "metric": "ttft_avg"}, "load is not described"),
        ({"model": "Llama-3.1-405B"}, "does not fit"),
    ],
)
def test_what_is_not_answered_says_why(changes, said):
    with pytest.raises(published.UnansweredError, match=said):
        published.predict(row(**changes))


def test_formats_are_those_of_the_checkpoints():
    def formats(name: str, precision: str) -> set[NumberFormat]:
        model = published_model(name, precision)
        return {op.format for kind, _ in model.layers for op in kind.operators}

    assert formats("Llama-3.3-70B", "fp8") == {NumberFormat.FP8}
    assert NumberFormat.MXFP4 in formats("gpt-oss-120b", "fp8")
    assert {NumberFormat.NVFP4, NumberFormat.FP8_BLOCK} <= formats("DeepSeek-R1-0528", "fp4")
    assert NumberFormat.NVFP4 not in formats("DeepSeek-V3", "fp8")


def test_the_models_built_here_have_their_published_sizes():
    assert llama2_70b().params == pytest.approx(69.0e9, rel=0.01)
    assert bloom_176b().params == pytest.approx(176.2e9, rel=0.01)
    assert published_model("Llama-4-Scout", "fp8").params == pytest.approx(107.8e9, rel=0.02)


def test_every_row_is_answered_or_counted(tmp_path, capsys):
    rows = [row(), row(value="2500"), row(gpu="MI355X"), row(gpu="MI355X")]
    path, out = tmp_path / "rows.csv", tmp_path / "out.json"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    published.main(["--rows", str(path), "--json", str(out), "--splitwise", str(tmp_path / "no")])
    report = json.loads(out.read_text())
    assert report["answered"] + sum(report["unanswered"].values()) == report["rows"] == len(rows)
    first, second = (published.predict(r) / float(r["value"]) - 1 for r in rows[:2])
    assert report["errors"]["all"]["median_abs_error"] == pytest.approx(
        (abs(first) + abs(second)) / 2
    )
    assert "2  output_throughput_per_gpu: device MI355X" in capsys.readouterr().out


def test_the_published_tables_are_mostly_answered():
    path = require_shared_data() / "silicon" / "published.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    some = rows[::20] + [r for r in rows if r["pp"].isdigit() and int(r["pp"]) > 1][::10]
    answers, reasons = published.answer(some)
    assert len(answers) + reasons.total() == len(some)
    assert len(answers) > 0.8 * len(some)
    assert all(entry.ours > 0.0 for entry in answers)
