"""JSON Schemas from the classes that read the files: of plans, and of the chart's `config`.

python -m cli.schema          print that of plans
python -m cli.schema --write  write docs/plan.schema.json and that part of the chart's schema
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cluster.model.plan import Plan
from serving.settings.config import ServeConfig

_REPOSITORY = Path(__file__).resolve().parents[1]
SCHEMA_PATH = _REPOSITORY / "docs" / "plan.schema.json"
VALUES_PATH = _REPOSITORY / "helm" / "shardwise" / "values.schema.json"


def schema_text() -> str:
    """The schema of plans, as the file holds it."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Plan.model_json_schema(),
        "title": "Shardwise plan",
    }
    return _text(schema)


def values_text() -> str:
    """The schema of the chart's values: what is written there, with the serving configuration's."""
    schema: dict[str, Any] = json.loads(VALUES_PATH.read_text(encoding="utf-8"))
    config = ServeConfig.model_json_schema()
    sections = config.pop("$defs")
    return _text(schema | {"$defs": {**sections, "ServeConfig": config}})


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
        VALUES_PATH.write_text(values_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())
