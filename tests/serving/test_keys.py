"""The key file, and the command that writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cluster.errors import ConfigError, InputError
from cluster.priority import Priority
from serving.keys import LOOK_EVERY_S, KeyRing, hashed, load_keys, new_key
from tests.serving.fakes import Clock

ONE = f"  - name: one\n    sha256: {hashed('sw-one')}\n"
TWO = f"  - name: two\n    sha256: {hashed('sw-two')}\n    priority: vip\n    models: [big]\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    one, two = load_keys(write(tmp_path / "keys.yaml", "keys:\n" + ONE + TWO))
    assert (one.priority, one.models, one.tokens_per_minute) == (Priority.STANDARD, None, None)
    assert one.may_use("anything")
    assert two.priority is Priority.VIP
    assert two.may_use("big")
    assert not two.may_use("small")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no list 'keys'"),
        ("- a", "has no list 'keys'"),
        ("keys: 5", "keys"),
        ("keys: [{name: x}]", "keys.0.sha256"),
        ("keys: [{name: x, sha256: sw-secret-itself}]", "keys.0.sha256"),
        (f"keys: [{{name: x, sha256: {'a' * 64}, tokens_per_minute: 0}}]", "tokens_per_minute"),
        (f"keys: [{{name: x, sha256: {'a' * 64}, prio: vip}}]", "keys.0.prio"),
        (f"keys: [{{name: x, sha256: {'a' * 64}, priority: king}}]", "keys.0.priority"),
        (f"keys: [{{name: x, sha256: {'a' * 64}, requests_per_minute: 0.5}}]", "per_minute"),
        ("keys:\n" + ONE + ONE.replace("one", "eins", 1), "more than once"),
        ("keys:\n" + ONE + TWO.replace("two", "one", 1), "'one' is there more than once"),
        ("keys: [", "cannot be read"),
    ],
)
def test_mistakes_are_named_and_no_key_is_shown(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path / "keys.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_keys(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "sw-secret-itself" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyRing(tmp_path / "none.yaml")


def test_a_change_is_in_force_after_a_look_and_a_broken_file_changes_nothing(
    tmp_path: Path,
) -> None:
    path, clock = write(tmp_path / "keys.yaml", "keys:\n" + ONE), Clock()
    ring = KeyRing(path, clock=clock)
    assert ring.find("sw-one") is not None
    write(path, "keys:\n" + TWO)
    assert ring.find("sw-two") is None, "looked at too often"
    clock.now_s += LOOK_EVERY_S
    assert ring.find("sw-two") is not None
    assert ring.find("sw-one") is None
    for broken in ("keys: [", "keys: 7"):
        write(path, broken)
        clock.now_s += LOOK_EVERY_S
        assert ring.find("sw-two") is not None
    path.unlink()
    clock.now_s += LOOK_EVERY_S
    assert ring.find("sw-two") is not None
    write(path, "keys:\n" + ONE + TWO)
    clock.now_s += LOOK_EVERY_S
    assert ring.find("sw-one") is not None


def test_keys_are_long_and_different() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert min(map(len, keys)) >= 40


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["key", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_adds_keys_that_open_the_door(tmp_path: Path) -> None:
    path = tmp_path / "secret" / "keys.yaml"
    first = run("ops", "--file", str(path), "--priority", "vip").split()[-1]
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("# ours\n" + path.read_text())
    second = run(
        "team", "--file", str(path), "--model", "a", "--model", "b", "--tokens-per-minute", "500"
    ).split()[-1]
    assert path.read_text().startswith("# ours\n")
    assert first not in path.read_text()
    ring = KeyRing(path)
    ops, team = ring.find(first), ring.find(second)
    assert ops is not None
    assert team is not None
    assert (ops.name, ops.priority, ops.models) == ("ops", Priority.VIP, None)
    assert (team.name, team.models, team.tokens_per_minute) == ("team", ("a", "b"), 500)
    assert list(path.parent.iterdir()) == [path]


def test_the_command_prints_an_entry_to_paste(tmp_path: Path) -> None:
    printed = run("ops")
    entry = printed[printed.index("  - name") : printed.index("Key, shown")]
    (key,) = load_keys(write(tmp_path / "keys.yaml", "keys:\n" + entry))
    assert key.sha256 == hashed(printed.split()[-1])


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("keys:\n" + ONE, "more than once"),
        ("keys: []\n", "Nothing was written"),
        ("keys: 7\n", "keys"),
    ],
)
def test_the_command_leaves_what_it_cannot_add_to(tmp_path: Path, before: str, said: str) -> None:
    path = write(tmp_path / "keys.yaml", before)
    with pytest.raises(InputError, match=said):
        run("one", "--file", str(path))
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
