"""Fits and predictions on files: those on the same data in memory."""

import inspect
import os
import tempfile

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_linnerud
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.data import features
from onnxsgd.exceptions import ParameterError
from onnxsgd.training import program

pd = pytest.importorskip("pandas")
dataset = pytest.importorskip("pyarrow.dataset")

SHORT = {"random_state": 0, "max_iter": 4, "tol": None}
CANCER = load_breast_cancer(as_frame=True).frame
CANCER["w"] = np.random.default_rng(0).uniform(0.5, 2.0, len(CANCER))
FEATURES = CANCER.drop(columns=["target", "w"])
DIABETES = load_diabetes(as_frame=True).frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name, frame in (("cancer", CANCER), ("diabetes", DIABETES)):
        frame.to_parquet(folder / f"{name}.parquet")
        frame.to_csv(folder / f"{name}.csv", index=False)
        (folder / name).mkdir()
        for number, start in enumerate(range(0, len(frame), 100)):
            frame.iloc[start : start + 100].to_parquet(folder / name / f"{number}.parquet")
    return folder


class Stored:
    """An array of a file."""

    chunks = None

    def __init__(self, array):
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, rows):
        return self._array[rows]

    def __array__(self, dtype=None, copy=None):
        return np.array(self._array, dtype)


def assert_equal_fits(found, expected):
    for name, array in expected.get_weights().items():
        np.testing.assert_array_equal(found.get_weights()[name], array)
    assert (found.t_, found.n_iter_) == (expected.t_, expected.n_iter_)
    np.testing.assert_array_equal(found.loss_curve_, expected.loss_curve_)


@pytest.mark.parametrize("kind", ["path", "text", "csv", "folder", "dataset", "scanner"])
def test_a_fit_on_files_is_that_on_the_frame(kind, folder):
    make = {
        "path": lambda: folder / "cancer.parquet",
        "text": lambda: str(folder / "cancer.parquet"),
        "csv": lambda: folder / "cancer.csv",
        "folder": lambda: folder / "cancer",
        "dataset": lambda: dataset.dataset(folder / "cancer.parquet"),
        "scanner": lambda: dataset.dataset(folder / "cancer.parquet").scanner(),
    }[kind]
    expected = OnnxSGDClassifier(**SHORT).fit(FEATURES, CANCER["target"], CANCER["w"])
    learner = OnnxSGDClassifier(**SHORT).fit(make(), "target", sample_weight="w")
    assert_equal_fits(learner, expected)
    assert learner.feature_names_in_.tolist() == list(FEATURES.columns)
    assert learner.fit_report_.seconds["read"] > 0
    # the columns of targets and weights are no features
    for name in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        np.testing.assert_array_equal(getattr(learner, name)(make()), getattr(expected, name)(FEATURES))
    assert learner.score(make(), "target") == expected.score(FEATURES, CANCER["target"])
    weighted = expected.score(FEATURES, CANCER["target"], CANCER["w"])
    assert learner.score(X=make(), y="target", sample_weight="w") == weighted


@pytest.mark.parametrize("end", [".parquet", ".csv", ""])
def test_a_regression(end, folder):
    path, X = folder / f"diabetes{end}", DIABETES.drop(columns="target")
    expected = OnnxSGDRegressor(**SHORT).fit(X, DIABETES["target"])
    learner = OnnxSGDRegressor(**SHORT).fit(path, "target")
    assert_equal_fits(learner, expected)
    np.testing.assert_array_equal(learner.predict(path), expected.predict(X))
    assert learner.score(path, "target") == expected.score(X, DIABETES["target"])


def test_several_targets(tmp_path):
    X, y = load_linnerud(return_X_y=True, as_frame=True)
    pd.concat([X, y], axis=1).to_csv(tmp_path / "x.csv", index=False)
    names = list(y.columns)
    learner = OnnxSGDRegressor(**SHORT).fit(tmp_path / "x.csv", names)
    assert_equal_fits(learner, OnnxSGDRegressor(**SHORT).fit(X.astype(float), y.astype(float)))
    assert learner.score(tmp_path / "x.csv", names) == learner.score(X, y)


def test_labels_of_text(tmp_path):
    labels = np.array(["malignant", "benign"])[CANCER["target"]]
    FEATURES.assign(label=labels).to_parquet(tmp_path / "x.parquet")
    learner = OnnxSGDClassifier(**SHORT).fit(tmp_path / "x.parquet", "label")
    assert_equal_fits(learner, OnnxSGDClassifier(**SHORT).fit(FEATURES, labels))
    assert learner.classes_.tolist() == ["benign", "malignant"]


@pytest.mark.parametrize("settings", [{}, {"early_stopping": True}, {"shuffle": "blocks"}])
def test_validation_data_of_files(settings, folder):
    settings = {**SHORT, **settings}
    X, y, path = FEATURES, CANCER["target"], folder / "cancer.parquet"
    expected = OnnxSGDClassifier(**settings).fit(X, y, X_val=X, y_val=y)
    # a column more than the training data
    learner = OnnxSGDClassifier(**settings).fit(X, y, X_val=path, y_val="target")
    assert_equal_fits(learner, expected)
    assert learner.validation_scores_ == expected.validation_scores_


def test_held_out_rows_of_files(folder):
    settings = {**SHORT, "early_stopping": True}
    learner = OnnxSGDClassifier(**settings).fit(folder / "cancer.parquet", "target", "w")
    assert_equal_fits(learner, OnnxSGDClassifier(**settings).fit(FEATURES, CANCER["target"], CANCER["w"]))


def test_parts_of_a_stream(folder):
    learner, expected = OnnxSGDClassifier(random_state=0), OnnxSGDClassifier(random_state=0)
    for path in sorted((folder / "cancer").iterdir()):
        learner.partial_fit(path, "target", [0, 1], "w")
        frame = pd.read_parquet(path)
        expected.partial_fit(frame[FEATURES.columns], frame["target"], [0, 1], frame["w"])
    assert_equal_fits(learner, expected)


@pytest.mark.parametrize("is_fitted", [False, True])
def test_models_with_names_of_columns(is_fitted, folder):
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=50))
    if is_fitted:
        # the model names the features: the weights are none of them
        model.fit(FEATURES, CANCER["target"])
    expected = OnnxSGDClassifier(model, **SHORT).fit(FEATURES, CANCER["target"])
    learner = OnnxSGDClassifier(model, **SHORT)
    if is_fitted:
        assert learner.score(folder / "cancer.csv", "target") == model.score(FEATURES, CANCER["target"])
        learner.fit(folder / "cancer.parquet", "target")
    else:
        learner.fit(
            dataset.dataset(folder / "cancer.parquet").scanner([*FEATURES.columns, "target"]), "target"
        )
    assert_equal_fits(learner, expected)


def test_deviations_of_files(folder):
    learner = OnnxSGDRegressor(loss="gaussian_nll", **SHORT).fit(folder / "diabetes.parquet", "target")
    for found, expected in zip(
        learner.predict(folder / "diabetes.csv", return_std=True),
        learner.predict(DIABETES.drop(columns="target"), return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_arrays_of_files(dtype):
    X, y = load_digits(return_X_y=True)
    X = X.astype(dtype)
    learner = OnnxSGDClassifier(**SHORT).fit(Stored(X), Stored(y))
    assert_equal_fits(learner, OnnxSGDClassifier(**SHORT).fit(X, y))
    np.testing.assert_array_equal(learner.predict(Stored(X)), learner.predict(X))
    assert learner.score(Stored(X), Stored(y)) == learner.score(X, y)


def test_a_fit_on_files_continues(folder, tmp_path):
    path = folder / "cancer.parquet"

    class Stop(Exception):
        pass

    def rate(t):
        if t > 30 and not rate.is_resumed:
            raise Stop
        return 0.01

    def make(**more):
        return OnnxSGDClassifier(learning_rate=rate, batch_size=32, **SHORT, **more)

    rate.is_resumed = False
    with pytest.raises(Stop):
        make(checkpoint=tmp_path / "kept").fit(path, "target")
    rate.is_resumed = True
    resumed = make(checkpoint=tmp_path / "kept").fit(path, "target", resume=True)
    assert_equal_fits(resumed, make().fit(FEATURES.assign(w=CANCER["w"]), CANCER["target"]))
    with pytest.raises(ParameterError, match="belongs to a fit with other values of X"):
        make(checkpoint=tmp_path / "kept").fit(folder / "diabetes.parquet", "target", resume=True)


def test_large_maps_are_shuffled_by_blocks(folder, monkeypatch):
    path, settings = folder / "cancer.parquet", {**SHORT, "learning_rate": "constant", "eta0": 1e-9}
    monkeypatch.setattr(program, "_LARGE_MAP", 1 << 10)
    # smaller tables are converted to arrays in memory
    monkeypatch.setattr(features, "_CONVERTED_BYTES", 1 << 10)
    found = OnnxSGDClassifier(**settings).fit(path, "target")
    assert_equal_fits(found, OnnxSGDClassifier(**settings, shuffle="blocks").fit(path, "target"))
    unshuffled = OnnxSGDClassifier(**settings, shuffle=False).fit(path, "target")
    # arrays in memory are not
    array = FEATURES.assign(w=CANCER["w"])
    assert_equal_fits(unshuffled, OnnxSGDClassifier(**settings, shuffle=False).fit(array, CANCER["target"]))
    expected = OnnxSGDClassifier(**settings).fit(array, CANCER["target"])
    monkeypatch.undo()
    assert_equal_fits(OnnxSGDClassifier(**settings).fit(path, "target"), expected)


def test_failed_fits_leave_the_estimator(folder, monkeypatch):
    learner = OnnxSGDClassifier(**SHORT).fit(FEATURES, CANCER["target"])
    before = learner.coef_
    for arguments in [("none.csv", "target"), (folder / "cancer.csv", "none")]:
        with pytest.raises(ParameterError):
            learner.fit(*arguments)
    np.testing.assert_array_equal(learner.coef_, before)
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    with pytest.raises(OSError, match="none"):
        learner.partial_fit(folder / "cancer.csv", "target")
    np.testing.assert_array_equal(learner.coef_, before)
    assert learner.n_iter_ == 4


@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_names_of_columns_go_with_files(name):
    arguments = {"y": CANCER["target"], name: "target"}
    with pytest.raises(ParameterError, match=f"{name}='target' names a column, and X is of type DataFrame"):
        OnnxSGDClassifier(**SHORT).fit(FEATURES, **arguments)
    with pytest.raises(ParameterError, match=f"{name}='target' names a column, and X is of type DataFrame"):
        OnnxSGDClassifier(**SHORT).partial_fit(FEATURES, classes=[0, 1], **arguments)


def test_a_file_without_a_column_of_the_training_data(folder):
    learner = OnnxSGDClassifier(**SHORT).fit(FEATURES, CANCER["target"])
    with pytest.raises(ParameterError, match="X is taken from the column 'mean radius', and X has"):
        learner.predict(folder / "diabetes.parquet")
    with pytest.raises(ParameterError, match="X is taken from the column 'mean radius'"):
        learner.partial_fit(folder / "diabetes.parquet", "target")


def test_signatures_stay():
    assert str(inspect.signature(OnnxSGDClassifier.score)).startswith("(self, X: 'object', y: 'ArrayLike'")
    assert os.path.basename(inspect.getfile(inspect.unwrap(OnnxSGDRegressor.predict))) == "regressor.py"


def test_errors_of_validation_data_name_them(folder):
    message = "In the validation data, X_val and y_val: y is taken from the column 'none'"
    with pytest.raises(ParameterError, match=message):
        OnnxSGDClassifier(**SHORT).fit(FEATURES, CANCER["target"], X_val=folder / "cancer.csv", y_val="none")
