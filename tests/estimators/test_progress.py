"""Progress on a terminal and in a file."""

from onnxsgd import OnnxSGDRegressor


def regressor(**more):
    return OnnxSGDRegressor(**{"max_iter": 5, "tol": None, "random_state": 0} | more)


def test_nothing_is_printed_by_default(diabetes, capsys):
    regressor().fit(*diabetes).partial_fit(*diabetes)
    assert capsys.readouterr() == ("", "")


def test_verbose_prints_a_line_for_each_epoch_into_a_file(diabetes, capsys):
    X, y = diabetes
    model = regressor(verbose=1, early_stopping=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[2].startswith(f"Epoch 3/5, loss {model.loss_curve_[2]:.6g}, learning rate ")
    assert f"validation score {model.validation_scores_[2]:.6g}" in lines[2]


def test_verbose_moves_a_bar_on_a_terminal(diabetes, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    regressor(verbose=1).fit(*diabetes)
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1
    # Five epochs take no tenth of a second: the first is shown, and the last.
    assert shown.count("\r") == 2
    assert shown.endswith("\x1b[K\n")
    assert shown.split("\r")[-1].startswith("[####################] Epoch 5/5, loss ")
