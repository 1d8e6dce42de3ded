"""What do all sections of the configuration file have in common?"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section: unknown fields are errors, and what was read does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
