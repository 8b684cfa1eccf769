"""Files that were damaged, cut short, joined from several or made up, and writing that fails: always an error in words, never another model."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pyarrow as pa
import pytest

from dsmgp import ChangePoints, DSMGPRegressor, load
from dsmgp._util import archive
from dsmgp._util.archive import ModelFileError
from dsmgp._util.atomic_write import CompleteFile
from dsmgp._util.warnings import FactorisationWarning
from dsmgp.changepoints.objective import ChangePointObjective
from dsmgp.data.files.tables import write_table
from dsmgp.data.parquet.sink import ParquetSink
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.persistence import estimator, hypotheses, mixture
from dsmgp.report import write_report
from dsmgp.tree.changepoint_leaf import has_changepoints
from tests.support.damage import made_up, packed, unpacked, worn

ROWS = np.random.default_rng(0).uniform(size=(30, 2))
HEIGHT = np.sin(6 * ROWS[:, 0])
NEW = np.concatenate([ROWS[:5], ROWS[:5] + 3.0])
# Each holds parts that the others do not.
KINDS = {
    "gated": {},
    "two outputs": {"kernel": "rbf", "mean": "linear"},
    "sum of kernels": {"kernel": "matern12+rbf", "weights": "posterior"},
    "uniform": {"kernel": "rbf", "weights": "uniform", "mean": "constant"},
    "fine-tuned": {"kernel": "matern32"},
    "changes": {"kernel": "rbf", "structure": "changepoint", "leaf_size": "auto"},
    "outliers": {"kernel": "rbf", "structure": ChangePoints(1, outliers=True), "leaf_size": "auto"},
    "warped": {"kernel": "rbf", "output_warp": "positive"},
    "boosted trees": {"kernel": "rbf", "boosted_trees": "always"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Sound files of all kinds."""
    path, found = tmp_path_factory.mktemp("sound") / "model.dsmgp", []
    for kind, options in KINDS.items():
        options = {"leaf_size": 10, "max_iter": 2, "random_state": 0, **options}
        model = DSMGPRegressor(**options)
        y = np.column_stack([HEIGHT, ROWS[:, 1]]) if kind == "two outputs" else HEIGHT
        model.fit(ROWS, np.exp(y) if kind == "warped" else y)
        if kind == "fine-tuned":
            model.finetune(max_iter=2)
        model.save(path)
        found.append(path.read_bytes())
    return found


@pytest.mark.parametrize("n", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_files_that_were_damaged_or_joined_are_all_refused(files, tmp_path, rng, n):
    path = tmp_path / "model.dsmgp"
    for k in range(n):
        content = worn(files[k % len(files)], files, rng)
        if content in files:
            continue
        path.write_bytes(content)
        with pytest.raises(ModelFileError):
            load(path)


@pytest.mark.parametrize("n", [100, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::dsmgp._util.warnings.FactorisationWarning")
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")  # they may be made up
def test_files_that_were_made_up_are_refused_or_hold_a_whole_model(files, tmp_path, rng, n):
    """Their checksum is right. What is read predicts finite numbers, and the same after it was written again."""
    path, n_read = tmp_path / "model.dsmgp", 0
    for k in range(n):
        path.write_bytes(made_up(files[k % len(files)], files, rng))
        try:
            model = load(path)
        except ModelFileError:
            continue
        n_read += 1
        mean, std = model.predict(NEW, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert (std > 0).all()
        assert np.isfinite(model.log_marginal_likelihood_)
        if not has_changepoints(model.tree_):
            assert np.isfinite([model.loo_score_, model.loo_score_new_inputs_]).all()
        assert isinstance(model.summary(), str)
        model.save(path)
        try:
            again = load(path).predict(NEW)
        except (
            ModelFileError
        ):  # its rows were made up: the evidence that is written again is not theirs
            continue
        np.testing.assert_allclose(again, mean, rtol=1e-4, atol=1e-4 * np.abs(mean).max())
    assert 0 < n_read < n


def changed(content, entry=None, **arrays):
    """A sound file with other arrays, and a header that something was done to."""
    header, found = unpacked(content)
    if entry is not None:
        entry(header)
    for name, change in arrays.items():
        name = name.replace("__", ".")
        found[name] = change(found[name])
    return packed(header, found)


def one(value, place=0):
    """An array with one number changed."""

    def change(found):
        found.reshape(-1)[place] = value
        return found

    return change


@pytest.mark.parametrize(
    ("kind", "arrays", "message"),
    [
        (0, {"X": one(1e160)}, "rescale"),
        (0, {"Y": one(-1e200)}, "rescale"),
        (0, {"inputs__scale": one(1e-308)}, "scaling"),
        (1, {"outputs__loading": one(1e160)}, "rescale"),
        (0, {"leaf__scale": one(1e30), "outputs__loading": one(1e145)}, "out of range"),
        (0, {"gate__shape_variances": one(1e30)}, "gate"),
        (3, {"leaf__log_evidence": lambda a: a + 1.0}, "hyperparameters do not go with"),
        (3, {"leaf__log_evidence": lambda a: a[:-1]}, "leaf.log_evidence"),
        (3, {"family__0__0__theta": one(4.0, 2)}, "hyperparameters do not go"),
        (4, {"leaf__natural__0": np.negative}, "positive"),
        (4, {"family__0__0__theta": one(-1e308, 1)}, "positive"),
        (5, {"family__0__0__theta": one(1e308, 1)}, "not finite"),
        (7, {"output_warps__0__slopes": np.negative}, "positive slopes"),
        (7, {"output_warps__0__slopes": one(1e300)}, "output warps"),
        (7, {"output_warps__0__slopes": one(1e-300)}, "output warps"),
        (7, {"output_warps__0__values": one(-1.0)}, "bound below the first value"),
        (7, {"output_warps__0__values": one(1e9)}, "increasing"),
        (8, {"coordinates__trees__below": one(1)}, "boosted trees"),
        (8, {"coordinates__trees__above": one(-1, -1)}, "boosted trees"),
        (8, {"coordinates__trees__dimension": one(2)}, "coordinates"),
        (8, {"coordinates__trees__roots": one(10**9)}, "boosted trees"),
        (8, {"coordinates__trees__value": lambda a: a[:-1]}, "boosted trees"),
    ],
)
def test_numbers_that_no_fit_could_have_found_are_refused(files, tmp_path, kind, arrays, message):
    path = tmp_path / "model.dsmgp"
    path.write_bytes(changed(files[kind], **arrays))
    with pytest.raises(ModelFileError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            lambda h: h["scores"].update(loo="nan"),
            "'scores.loo' is 'nan', expected a finite number",
        ),
        (
            lambda h: h["scores"].update(loo_new_inputs=float("nan")),
            "'scores.loo_new_inputs' is nan",
        ),
        (lambda h: h["gate"].update(variance_exponent=-21.0), "gate"),
        (lambda h: h.update(output="spark"), "'output'"),
        (lambda h: h.update(output=["pandas"]), "'output'"),
    ],
)
def test_entries_that_no_fit_could_have_found_are_refused(files, tmp_path, entry, message):
    path = tmp_path / "model.dsmgp"
    path.write_bytes(changed(files[0], entry))
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_a_file_does_not_say_where_work_is_done(files, tmp_path):
    """Or a later fit could be made to overwrite and remove any file, or to join a cluster."""
    path, victim = tmp_path / "model.dsmgp", tmp_path / "precious"
    victim.write_text("mine")
    hostile = {"checkpoint": str(victim), "executor": "ray"}
    path.write_bytes(changed(files[0], lambda h: h["parameters"].update(hostile)))
    model = load(path)
    assert model.checkpoint is None
    assert model.executor == "local"
    model.set_params(checkpoint=str(tmp_path / "own")).save(path)
    assert "checkpoint" not in unpacked(path.read_bytes())[0]["parameters"]


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ModelFileError, match="no file"):
            load(path)


# Writing that fails


@pytest.fixture(scope="module")
def model():
    return DSMGPRegressor("rbf", optimizer=None, random_state=0).fit(ROWS, HEIGHT)


@pytest.mark.parametrize("place", ["write", "fsync", "replace", "chmod"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_step_of_writing_that_fails_leaves_the_old_file(
    model, tmp_path, monkeypatch, place, number
):
    path = tmp_path / "model.dsmgp"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(CompleteFile if place == "write" else os, place, fail)
    with pytest.raises(ModelFileError, match=os.strerror(number)):
        model.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.dsmgp"]


def test_a_folder_that_cannot_be_settled_has_the_file_all_the_same(model, tmp_path, monkeypatch):
    """Some file systems refuse to: the file is written, and no error is raised."""
    sync, path = os.fsync, tmp_path / "model.dsmgp"

    def only_files(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(os, "fsync", only_files)
    model.save(path)
    np.testing.assert_array_equal(load(path).predict(NEW), model.predict(NEW))


def test_a_file_larger_than_may_be_written_leaves_the_old_one(model, tmp_path):
    """The system itself refuses in the middle of writing."""
    path = tmp_path / "model.dsmgp"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(ModelFileError, match="File too large"):
            model.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.dsmgp"]


def written(kind, model, path):
    """Anything that is written in place of what was there."""
    match kind:
        case "model":
            model.save(path)
        case "table":
            write_table(pa.table({"x": [1.0]}), path)
        case "predictions":
            with ParquetSink(path) as sink:
                sink.add(pa.table({"x": [1.0]}))
        case "report":
            write_report(path, model, ROWS, HEIGHT)


WRITTEN = ("model", "table", "predictions", "report")


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_pipe_or_a_device_is_not_replaced(model, tmp_path, kind):
    """To put a file in the place of /dev/null would take it away from all who use it."""
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    with pytest.raises((ValueError, OSError), match="a device or a pipe"):
        written(kind, model, path)
    assert path.is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["pipe.csv"]


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_link_stays_and_what_it_points_to_is_replaced(model, tmp_path, kind):
    """Or who reads that by its own name would go on with the old one."""
    far, link = tmp_path / "far" / "file", tmp_path / "link.csv"
    far.parent.mkdir()
    far.write_bytes(b"old")
    link.symlink_to("far/file")
    written(kind, model, link)
    assert link.is_symlink()
    assert far.read_bytes() == link.read_bytes() != b"old"
    assert [p.name for p in far.parent.iterdir()] == ["file"]


def test_names_that_are_too_long_are_refused_in_words(model, tmp_path):
    path = tmp_path / ("x" * 300)
    with pytest.raises(ModelFileError, match=r"cannot write .* too long"):
        model.save(path)
    with pytest.raises(ModelFileError, match=r"cannot read .* too long"):
        load(path)


def test_the_mode_of_a_file_stays_and_the_mask_of_the_process_is_not_touched(
    model, tmp_path, monkeypatch
):
    """Setting the mask, even for a moment, would be felt by all threads."""
    path = tmp_path / "model.dsmgp"
    path.write_bytes(b"old")
    path.chmod(0o600)
    monkeypatch.delattr(os, "umask")
    model.save(path)
    assert path.stat().st_mode & 0o777 == 0o600


SAVING = """
import sys, numpy as np
from dsmgp import DSMGPRegressor
X = np.random.default_rng(0).uniform(size=(3000, 40))
model = DSMGPRegressor("rbf", optimizer=None, leaf_size=50, sum_children=1, random_state=0).fit(X, X[:, 0])
print("ready", flush=True)
while True:
    model.save(sys.argv[1])
"""


@pytest.mark.parametrize("n", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_process_killed_while_it_saves_leaves_a_whole_file(tmp_path, rng, n):
    path = tmp_path / "model.dsmgp"
    for _ in range(n):
        writer = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SAVING, str(path)], stdout=subprocess.PIPE
        )
        try:
            assert writer.stdout.readline() == b"ready\n"
            for _ in range(2000):
                if path.exists():
                    break
                time.sleep(0.005)
            time.sleep(float(rng.uniform(0.0, 0.05)))
        finally:
            writer.kill()
            writer.wait()
            writer.stdout.close()
        held = archive.read_archive(path)  # its sum is right
        assert held.array("X", np.float64, 3000, 40).shape == (3000, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FactorisationWarning)
        assert load(path).predict(np.zeros((1, 40))).shape == (1,)


@pytest.mark.parametrize("error", [AttributeError, TypeError, RuntimeError, ValueError, KeyError])
@pytest.mark.parametrize(
    "place",
    ["read_parameters", "read_families", "read_mixture", "InMemoryLeafGPs", "_check_variances"],
)
def test_faults_of_the_program_are_not_blamed_on_the_file(
    files, tmp_path, monkeypatch, place, error
):
    """Only values of the file that a validator refuses make it a wrong file."""

    def fail(*_, **__):
        raise error("a fault")

    for module in (estimator, hypotheses, mixture):
        if hasattr(module, place):
            monkeypatch.setattr(module, place, fail)
    path = tmp_path / "model.dsmgp"
    path.write_bytes(files[0])
    with pytest.raises(error, match="a fault") as caught:
        load(path)
    assert not isinstance(caught.value, ModelFileError)


@pytest.mark.parametrize(
    ("home", "name", "kind"),
    [
        (InMemoryLeafGPs, "condition", "fine-tuned"),
        (ChangePointObjective, "condition", "changes"),
        (InMemoryLeafGPs, "log_evidence", "gated"),
    ],
)
def test_a_fault_while_leaves_are_conditioned_is_not_blamed_on_the_file(
    files, tmp_path, monkeypatch, home, name, kind
):
    """A covariance that cannot be factorised is that of hyperparameters in the file."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(home, name, fail)
    path = tmp_path / "model.dsmgp"
    path.write_bytes(files[list(KINDS).index(kind)])
    error = ValueError("a fault")
    with pytest.raises(ValueError, match="a fault") as caught:
        load(path)
    assert caught.value is error
    if name == "condition":
        error = NotFactorisedError()
        with pytest.raises(ModelFileError, match="invalid hyperparameters: a covariance"):
            load(path)


def test_a_fault_in_the_check_of_parameters_is_not_a_missing_device(files, tmp_path, monkeypatch):
    """A GPU that this machine lacks is replaced; whatever else is wrong is not about the device."""

    def fail(*_):
        raise ValueError("a fault")

    header, arrays = unpacked(files[0])
    header["parameters"]["device"] = "cuda:77"
    path = tmp_path / "model.dsmgp"
    path.write_bytes(packed(header, arrays))
    monkeypatch.setattr(estimator, "check_parameters", fail)
    with (
        pytest.warns(UserWarning, match="which this machine lacks"),
        pytest.raises(ValueError, match="a fault"),
    ):
        load(path)
