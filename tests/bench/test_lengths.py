from bench.length_rivals import made_up
from bench.lengths import compared, main


def test_the_learned_predictor_is_closest_on_applications_of_our_own_making(capsys):
    scores = {score.predictor: score for score in compared("made up", made_up(3_000))}
    learned = scores.pop("learned")
    assert learned.mae < min(score.mae for score in scores.values())
    assert learned.spearman > max(score.spearman for score in scores.values())
    assert abs(learned.sum_bias) < 0.05
    assert "learned" in capsys.readouterr().out


def test_it_says_which_traces_are_not_at_hand(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["lengths", "--quick", "--trace", str(tmp_path / "none.csv")])
    main()
    told = capsys.readouterr().out
    assert "none.csv is not at hand" in told
    assert "made up" in told
