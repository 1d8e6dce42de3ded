from serving.keeper.orphans import PATIENCE_S, step_orphans
from serving.keeper.processes import Owned

CORE = Owned(pid=10, born_s=1.0, replica_id="gone")
OTHER = Owned(pid=11, born_s=1.0, replica_id="living")
LIVING = frozenset({"living"})
GRACE_S = 30.0


def looks(rolls, *, processes=(CORE, OTHER), step_s=10.0):
    """(asked, ended) of each look."""
    known, found = {}, []
    for i, living in enumerate(rolls):
        step = step_orphans(known, processes, living, now_s=i * step_s, grace_s=GRACE_S)
        known = step.known
        found.append((step.ask, step.end))
    return found


def test_what_is_left_is_asked_to_end_after_the_grace_period_and_then_ended():
    found = looks([LIVING] * 6)
    assert [bool(ask) for ask, _ in found] == [False, False, False, True, False, False]
    assert [bool(end) for _, end in found] == [False, False, False, False, True, True]
    assert found[3][0] == found[4][1] == (CORE,)


def test_patience_runs_after_asking():
    found = looks([LIVING] * 20, step_s=PATIENCE_S / 2)
    first = next(i for i, (ask, _) in enumerate(found) if ask)
    assert [bool(end) for _, end in found[first : first + 4]] == [False, False, True, True]


def test_a_roll_that_nobody_knows_ends_nothing():
    assert not any(ask or end for ask, end in looks([None] * 20))
    found = looks([LIVING, LIVING, None, None, None, None])
    assert not any(ask or end for ask, end in found)


def test_an_empty_roll_is_a_roll():
    assert [ask for ask, _ in looks([frozenset()] * 4)][3] == (CORE, OTHER)


def test_a_replica_that_is_back_on_the_roll_has_the_whole_grace_again():
    both = frozenset({"living", "gone"})
    found = looks([LIVING] * 3 + [both] + [LIVING] * 3)
    assert not any(ask for ask, _ in found)
