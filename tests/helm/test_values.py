"""Every value has its words, and its place in the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.helm.chart import CHART

VALUES = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def keys(node: yaml.Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Values and their lines; what is written on one line is one value."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        for key, value in node.value:
            here = (*path, key.value)
            yield here, key.start_mark.line
            if here[-1] != "resources":
                yield from keys(value, here)


def test_every_value_has_a_comment_above_it_or_above_the_lines_it_stands_with() -> None:
    lines = VALUES.splitlines()
    found = list(keys(yaml.compose(VALUES)))
    groups = {path[:-1] for path, _ in found}

    def said(line: int) -> bool:
        indent = lines[line][: len(lines[line]) - len(lines[line].lstrip())]
        above = lines[line - 1]
        if above.startswith(f"{indent}#"):
            return True
        beside = above.startswith(indent) and above[len(indent) :][:1] not in ("", " ")
        return beside and said(line - 1)

    assert [path for path, line in found if path not in groups and not said(line)] == []


def test_every_value_is_in_the_schema_and_the_schema_has_no_other() -> None:
    def known(schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
        if "$ref" in schema or not isinstance(value, dict) or "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        extra = {"global"} if not path else set()
        if value and set(schema["properties"]) - extra != set(value):
            yield path
        for name, inner in value.items():
            yield from known(schema["properties"][name], inner, f"{path}.{name}")

    differing = [
        path
        for path in known(SCHEMA, yaml.safe_load(VALUES), "")
        if not path.endswith(".resources")
    ]
    assert differing == []
