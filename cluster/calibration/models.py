"""Which model is the `config` of a run? A file of a folder, or an entry of the catalogue.

`org--name` is the hub repository `org/name`, written so that it can name a file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from cluster.errors import InputError, ShardwiseError, UnknownNameError
from cluster.model.catalogue import get_model
from cluster.model.hf_config import read_model
from cluster.model.model_spec import ModelSpec


def models_of(folder: Path | None) -> Callable[[str], ModelSpec]:
    """The models by the `config` of runs: `<folder>/<config>.json`, the catalogue where None.

    Raises InputError where the folder cannot be read or holds no configuration. The function
    given back raises UnknownNameError, listing what there is, or ConfigError where a
    configuration does not parse; each names the config.
    """
    if folder is None:
        return _of_the_catalogue
    try:
        files = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix == ".json"}
    except (OSError, ValueError) as error:
        raise InputError(
            f"models folder {folder} cannot be listed ({error}). Fix: pass the folder "
            "that holds one <config>.json per model, or leave the option out to use the catalogue."
        ) from error
    if not files:
        raise InputError(
            f"models folder {folder} holds no .json file. Fix: put one <config>.json per "
            "model there, or leave the option out to use the catalogue."
        )

    @cache
    def find(config: str) -> ModelSpec:
        if config not in files:
            raise UnknownNameError(
                kind="config",
                name=config,
                known=files,
                hint=f"Put its configuration at {folder / (config + '.json')}.",
            )
        return read_model(files[config])

    return find


@cache
def _of_the_catalogue(config: str) -> ModelSpec:
    try:
        return get_model(config.replace("--", "/", 1))
    except ShardwiseError as error:
        raise InputError(
            f"config '{config}': {error} Or pass --models with the folder that holds its "
            "configuration as <config>.json."
        ) from error
