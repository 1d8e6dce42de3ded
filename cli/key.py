"""`shardwise key`: make an API key. The key is printed once; the file keeps its hash."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
import yaml

from cli.console import out
from cli.files import about
from cluster.errors import ConfigError, InputError
from cluster.priority import Priority
from serving.keys import hashed, load_keys, new_key


def command(
    name: Annotated[str, typer.Argument(help="Whose key it is; shown in metrics and errors.")],
    *,
    file: Annotated[
        Path | None, typer.Option(help="Add its entry to this key file (made if it is not there).")
    ] = None,
    priority: Annotated[
        Priority, typer.Option(help="The highest class it may ask for, and its default.")
    ] = Priority.STANDARD,
    model: Annotated[
        list[str] | None, typer.Option(help="A model it may use; repeatable. Default: all.")
    ] = None,
    requests_per_minute: Annotated[
        float | None, typer.Option(min=1.0, help="Default: no limit.")
    ] = None,
    tokens_per_minute: Annotated[
        float | None, typer.Option(min=1.0, help="Prompt and output. Default: no limit.")
    ] = None,
) -> None:
    """Make a key."""
    key = new_key()
    entry = _entry(
        {
            "name": name,
            "sha256": hashed(key),
            "priority": priority.value,
            "models": model,
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
        }
    )
    console = out()
    if file is None:
        console.print("Entry for the key file (`access.keys_file`), under `keys:`\n")
        console.print(entry, markup=False, highlight=False, soft_wrap=True)
    else:
        _add(entry, file)
        console.print(f"added '{name}' to {file}", markup=False, soft_wrap=True)
    console.print("Key, shown this once:")
    console.print(key, markup=False, highlight=False, soft_wrap=True)


def _entry(fields: dict[str, object]) -> str:
    given = {name: value for name, value in fields.items() if value not in (None, [])}
    lines = yaml.safe_dump([given], sort_keys=False, allow_unicode=True).splitlines()
    return "".join(f"  {line}\n" for line in lines)


def _add(entry: str, path: Path) -> None:
    """Append to the file, which keeps what it says; whole or not at all, for its owner's eyes."""
    with about(path, option="--file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_text(encoding="utf-8") if path.exists() else "keys:\n"
        joined = old if old.endswith("\n") else old + "\n"
        if path.exists():
            load_keys(path)  # what is wrong already is said as it is
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        new = Path(name)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as out_file:
                out_file.write(joined + entry)
            _check(new, path=path)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


def _check(new: Path, *, path: Path) -> None:
    try:
        load_keys(new)
    except ConfigError as error:
        said = str(error).replace(str(new), str(path))
        raise InputError(
            f"{said} Nothing was written. If the name is new, the list is not indented by two "
            "spaces: run this without --file and paste the entry."
        ) from error
