"""The JSON Schema of plan files, from the classes that read them.

python -m cli.schema          print it
python -m cli.schema --write  write docs/plan.schema.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cluster.model.plan import Plan

SCHEMA_PATH = Path(__file__).resolve().parents[1] / "docs" / "plan.schema.json"


def schema_text() -> str:
    """The schema's text, as the file holds it."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Plan.model_json_schema(),
        "title": "Shardwise plan",
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())
