"""Which requests do the public CSV traces list?

- Azure (AzurePublicDataset, 2023 and 2024): `TIMESTAMP,ContextTokens,GeneratedTokens`.
- BurstGPT (HPMLL/BurstGPT): `Timestamp` in seconds, `Request tokens`, `Response tokens` and more
  columns from release to release. Rows with 0 response tokens are failed requests.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.traces.cells import csv_rows, measure, tokens
from cluster.traces.request import TraceRequest
from cluster.traces.source import Parsed, Source, requests_of
from cluster.traces.timestamps import Clock

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def read_azure(source: Source) -> Iterator[TraceRequest]:
    """The requests of an Azure LLM inference trace."""
    time, prompt, output = AZURE_COLUMNS
    clock = Clock(time)

    def parse(cells: tuple[str, str, str]) -> Parsed:
        return clock(cells[0]), tokens(cells[1], prompt), tokens(cells[2], output), ()

    return requests_of(source, csv_rows(source, AZURE_COLUMNS), parse)


def read_burstgpt(source: Source) -> Iterator[TraceRequest]:
    """The requests of a BurstGPT trace."""
    time, prompt, output = BURSTGPT_COLUMNS

    def parse(cells: tuple[str, str, str]) -> Parsed:
        return measure(cells[0], time), tokens(cells[1], prompt), tokens(cells[2], output), ()

    return requests_of(source, csv_rows(source, BURSTGPT_COLUMNS), parse)
