from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.grant import Asked, Granted, grant
from autoscaler.snapshot import Tier
from cluster.priority import Priority


def asked(
    priority: Priority = Priority.STANDARD,
    *,
    logprobs: bool = True,
    max_tokens: int | None = 50,
    room: int = 100,
    served_by_main: bool = True,
    light_room: int | None = 100,
) -> Asked:
    return Asked(
        priority=priority,
        logprobs=logprobs,
        max_tokens=max_tokens,
        room=room,
        served_by_main=served_by_main,
        light_room=light_room,
    )


def in_tier(tier: Tier, what: Asked) -> Granted:
    return grant(what, tier=tier, output_cap=16)


def test_each_tier_adds_its_change() -> None:
    changes = [in_tier(tier, asked()).changes for tier in Tier]
    assert changes == [
        (),
        ("logprobs-off",),
        ("logprobs-off", "max-tokens=16"),
        ("logprobs-off", "max-tokens=16", "light-model"),
        (),
    ]
    assert in_tier(Tier.SHED, asked()).refused


def test_a_vip_is_neither_moved_nor_shed() -> None:
    granted = in_tier(Tier.SHED, asked(Priority.VIP))
    assert (granted.light, granted.refused, granted.max_tokens) == (False, False, 16)


def test_a_request_for_the_light_model_is_neither_moved_nor_shed() -> None:
    granted = in_tier(Tier.SHED, asked(served_by_main=False))
    assert (granted.light, granted.refused) == (False, False)


def test_without_a_ready_light_model_nothing_is_moved() -> None:
    assert not in_tier(Tier.LIGHT_MODEL, asked(light_room=None)).light


def test_what_does_not_fit_the_light_model_is_not_moved() -> None:
    assert not in_tier(Tier.LIGHT_MODEL, asked(light_room=15)).light
    assert in_tier(Tier.LIGHT_MODEL, asked(light_room=16)).light
    assert not in_tier(Tier.LIGHT_MODEL, asked(max_tokens=None, room=5, light_room=0)).light


def test_an_open_output_is_capped_only_if_the_cap_shortens_it() -> None:
    open_end = in_tier(Tier.SHORT_OUTPUT, asked(max_tokens=None))
    assert (open_end.max_tokens, "max-tokens=16" in open_end.changes) == (16, True)
    no_room = in_tier(Tier.SHORT_OUTPUT, asked(max_tokens=None, room=10))
    assert (no_room.max_tokens, no_room.changes) == (None, ("logprobs-off",))


@settings(deadline=None)
@given(
    what=st.builds(
        Asked,
        priority=st.sampled_from(Priority),
        logprobs=st.booleans(),
        max_tokens=st.none() | st.integers(0, 200),
        room=st.integers(1, 200),
        served_by_main=st.booleans(),
        light_room=st.none() | st.integers(-5, 200),
    ),
    tier=st.sampled_from(Tier),
)
def test_a_tier_never_gives_more_than_was_asked_and_says_what_it_took(
    what: Asked, tier: Tier
) -> None:
    granted = grant(what, tier=tier, output_cap=16)
    if granted.max_tokens is not None:
        assert granted.max_tokens <= (what.room if what.max_tokens is None else what.max_tokens)
    assert granted.logprobs <= what.logprobs
    told = {change.partition("=")[0] for change in granted.changes}
    assert ("logprobs-off" in told) == (granted.logprobs != what.logprobs)
    assert ("max-tokens" in told) == (granted.max_tokens != what.max_tokens)
    assert ("light-model" in told) == granted.light
    if what.priority is Priority.VIP:
        assert not granted.refused
        assert not granted.light
