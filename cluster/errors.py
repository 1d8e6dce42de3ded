"""Errors a user can cause and mend.

    ShardwiseError
    ├── InputError            something the user wrote is wrong (CLI exit 2, HTTP 400)
    │   ├── UnknownNameError  a name that is in no table; carries the near misses
    │   └── ConfigError       a file or field that does not parse; names file and field
    ├── InfeasibleError       a right question whose answer is "no layout fits" (CLI exit 3)
    └── UnavailableError      a part that should answer does not (CLI exit 4, HTTP 503)

Every message says what was wrong, the limit, and what to do about it. The command line and the
gateway print `str(error)` and nothing else; a traceback reaching a user is a bug of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ShardwiseError(Exception):
    """Base of all errors meant for the user's eyes."""

    exit_code = 1


class InputError(ShardwiseError):
    """Something the user wrote is wrong."""

    exit_code = 2


class UnknownNameError(InputError):
    """A name that is in no table."""

    def __init__(self, *, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        did_you_mean = f" Did you mean {' or '.join(near)}?" if near else ""
        message = f"unknown {kind} '{name}'.{did_you_mean} Known: {', '.join(known)}."
        super().__init__(f"{message} {hint}".rstrip())


class ConfigError(InputError):
    """A file or a field of it that does not parse or holds an impossible value."""

    def __init__(self, *, source: str, field: str, problem: str, fix: str = "") -> None:
        where = f"{source}: field '{field}'" if field else source
        super().__init__(f"{where}: {problem}" + (f" Fix: {fix}" if fix else ""))
        self.source = source
        self.field = field


class InfeasibleError(ShardwiseError):
    """No layout satisfies the question: an expected answer; the message names the nearest miss."""

    exit_code = 3


class UnavailableError(ShardwiseError):
    """A part that should answer does not."""

    exit_code = 4
