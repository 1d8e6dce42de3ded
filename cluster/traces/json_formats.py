"""Which requests, and which shared prompt blocks, do the public JSON-lines traces list?

- Mooncake (kvcache-ai/Mooncake, arXiv:2407.00079): `timestamp` in ms; `hash_ids` of 512-token
  blocks, where an id stands for the block and all before it.
- Qwen-Bailian (alibaba-edu/qwen-bailian-usagetraces-anon): `timestamp` in seconds; `hash_ids` of
  16-token blocks, each of the block's own content. The same content after another prefix shares
  no KV cache, so ids are chained here: h_i = hash(h_(i-1), id_i).

The ids cover the whole prompt, the last one possibly a partial block, which no cache shares: the
first input_length // block ids are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from cluster.traces.cells import json_measure, json_tokens
from cluster.traces.request import TraceRequest
from cluster.traces.source import Parsed, Source, WrongCellError, requests_of

MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
QWEN_KEYS = ("chat_id", *MOONCAKE_KEYS)
MOONCAKE_BLOCK_TOKENS = 512
QWEN_BLOCK_TOKENS = 16

_Record = dict[str, Any]  # JSON: of any kind until checked


def read_mooncake(source: Source) -> Iterator[TraceRequest]:
    """The requests of a Mooncake trace."""

    def parse(text: str) -> Parsed:
        record = _record(text, MOONCAKE_KEYS)
        prompt = json_tokens(record["input_length"], "input_length")
        return (
            json_measure(record["timestamp"], "timestamp") / 1e3,
            prompt,
            json_tokens(record["output_length"], "output_length"),
            tuple(_ids(record)[: prompt // MOONCAKE_BLOCK_TOKENS]),
        )

    return requests_of(source, _numbered(source), parse, block_tokens=MOONCAKE_BLOCK_TOKENS)


def read_qwen(source: Source) -> Iterator[TraceRequest]:
    """The requests of a Qwen-Bailian trace."""

    def parse(text: str) -> Parsed:
        record = _record(text, MOONCAKE_KEYS)
        prompt = json_tokens(record["input_length"], "input_length")
        return (
            json_measure(record["timestamp"], "timestamp"),
            prompt,
            json_tokens(record["output_length"], "output_length"),
            chained(_ids(record)[: prompt // QWEN_BLOCK_TOKENS]),
        )

    return requests_of(source, _numbered(source), parse, block_tokens=QWEN_BLOCK_TOKENS)


def chained(ids: Iterable[int]) -> tuple[int, ...]:
    """Hashes that stand for a block and all before it, of ids that stand for the block alone."""
    last = 0
    found = []
    for block in ids:
        last = hash((last, block))  # of whole numbers: the same in every process
        found.append(last)
    return tuple(found)


def _numbered(source: Source) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(source.lines(), start=1) if line.strip())


def _record(text: str, keys: tuple[str, ...]) -> _Record:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise WrongCellError(
            "",
            f"is not JSON ({error.msg} at character {error.pos + 1}).",
            fix="write one JSON object per line; the line may be cut short.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise WrongCellError(
            "", f"is not JSON ({error}).", fix="write one JSON object per line."
        ) from error
    if not isinstance(record, dict):
        raise WrongCellError(
            "", "is JSON but no object.", fix=f"write an object with {', '.join(keys)}."
        )
    for key in keys:
        if key not in record:
            raise WrongCellError(
                key,
                f"is missing; the line has {', '.join(map(str, record)) or 'no keys'}.",
                fix=f"give every line {', '.join(keys)} (hash_ids may be []).",
            )
    return record


def _ids(record: _Record) -> list[int]:
    ids = record["hash_ids"]
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise WrongCellError(
            "hash_ids",
            "is not a list of whole numbers.",
            fix="write one id per block, such as [0, 1, 2].",
        )
    return ids
