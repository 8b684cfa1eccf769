"""Rows on disk: files by piece of the data, from which shards are read in whatever order pieces were written."""

import pickle
import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dsmgp import ModelFileError
from dsmgp.distributed.row_files import files_in, new_files, remove_replaced, row_file
from dsmgp.distributed.row_store import (
    RowStore,
    check_empty,
    first_leaves_of_shards,
    shard_bytes,
)
from dsmgp.distributed.row_writer import RowWriter
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling


def test_shards_are_ranges_of_leaves_that_fit_in_memory():
    sizes = np.random.default_rng(0).integers(10, 200, size=300)
    firsts = first_leaves_of_shards(sizes, 3, 1, 1e5)
    each = [shard_bytes(sizes[a:b], 3, 1) for a, b in pairwise(firsts)]
    assert firsts[0] == 0
    assert firsts[-1] == 300
    assert max(each) < 1e5 + shard_bytes(np.array([200]), 3, 1)
    assert len(first_leaves_of_shards(sizes, 3, 1, 1e12)) == 2


class Pool:
    """Keeps the plans of shards."""

    device = "cpu"

    def memory_of_shard(self, memory):
        return memory

    def place(self, plans):
        self.plans = plans
        return list(range(len(plans)))

    def remove(self, shards):
        pass


def plans_of(store, X, Y):
    pool = Pool()
    scaling = InputScaling.of(X, False), OutputScaling.of(Y, False)
    store.leaf_gps(pool, [[None] * len(store.sizes)], scaling, 1e9, "float64")
    return pool.plans


@pytest.fixture
def written(rng, tmp_path):
    """Two shards of four leaves in all; leaf 3 holds every row, the others a third each."""
    X, Y = rng.normal(size=(90, 2)).round(1), rng.normal(size=(90, 1))
    writer = RowWriter.into(tmp_path, np.array([0, 2, 4]), 2, 1)

    def routed(first, end):
        batch = np.arange(first, end)
        leaf = np.concatenate([batch % 3, np.full(len(batch), 3)])
        return leaf, np.tile(np.arange(len(batch)), 2), first, X[batch], Y[batch]

    # Two pieces, the last first, and the first in two batches.
    last = writer.write(1, [routed(60, 90)])
    return X, Y, writer.store([writer.write(0, [routed(0, 50), routed(50, 60)]), last])


def test_shards_read_the_rows_that_were_written(written):
    X, Y, store = written
    assert store.n_rows == 90
    np.testing.assert_array_equal(store.sizes, [30, 30, 30, 90])
    first, second = (plan.load() for plan in plans_of(store, X, Y))
    for shard, rows in (
        (first, [np.arange(0, 90, 3), np.arange(1, 90, 3)]),
        (second, [np.arange(2, 90, 3), np.arange(90)]),
    ):
        for k, expected in enumerate(rows):
            here = shard.leaf_rows[k]
            np.testing.assert_array_equal(shard.ids[here], expected)
            np.testing.assert_array_equal(shard.data.X[here], X[expected])
            np.testing.assert_array_equal(shard.data.Y[here], Y[expected])
        same = (shard.data.X[:, None] == shard.data.X[None]).all(axis=-1)
        np.testing.assert_array_equal(shard.data.labels[:, None] == shard.data.labels[None], same)
    assert len(second.ids) == 90  # rows of two leaves are kept once


@pytest.mark.parametrize("n_pieces", [1, 40])
@pytest.mark.parametrize("n_shards", [2, 60])
def test_the_plan_of_a_shard_is_small_whatever_the_store_holds(rng, tmp_path, n_pieces, n_shards):
    X, Y = rng.normal(size=(90, 2)), rng.normal(size=(90, 1))
    writer = RowWriter.into(tmp_path, np.append(2 * np.arange(n_shards), 300), 2, 1)
    batch = (np.arange(90) % 300, np.arange(90), 0, X, Y)
    store = writer.store([writer.write(k, [batch] * 3) for k in range(n_pieces)])
    assert max(len(pickle.dumps(plan.load)) for plan in plans_of(store, X, Y)[:-1]) < 1800
    assert sum(len(plan.load().ids) for plan in plans_of(store, X, Y)[:1]) > 0


def test_files_are_removed_once_nothing_uses_them(tmp_path):
    writer = RowWriter.into(tmp_path, np.array([0, 1]), 1, 0)
    rows = np.zeros(5, dtype=int), np.arange(5), 0, np.zeros((5, 1)), np.empty((5, 0))
    store = writer.store([writer.write(k, [rows]) for k in range(2)])
    other = replace(store)
    with new_files(tmp_path, 2) as first:
        assert first == 2
        writer.write(first, [rows])
        with new_files(tmp_path, 1) as further:  # by another thread
            assert further == 4
        (tmp_path / "shards" / "00009.rows.123").write_bytes(b"half")
        del store
        assert remove_replaced(tmp_path, [0, 1]) == [0, 1]
        names = sorted(path.name for path in files_in(tmp_path))
        others = ["00002.rows", "00009.rows.123"]  # which another process may be writing
        assert names == ["00000.rows", "00001.rows", *others]
    del other
    assert remove_replaced(tmp_path, [0, 1]) == []
    assert sorted(path.name for path in files_in(tmp_path)) == others


def test_files_of_a_change_that_failed_are_removed(tmp_path):
    (tmp_path / "shards").mkdir()

    def change():
        with new_files(tmp_path, 1) as number:
            row_file(tmp_path, number).write_bytes(b"rows")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        change()
    assert not files_in(tmp_path)


def test_files_of_another_fit_are_told_from_those_of_the_model(written):
    X, Y, store = written
    writer = RowWriter(store.folder, store.firsts, 2, 1)
    writer.write(0, [(np.zeros(90, dtype=int), np.arange(90), 0, X, Y)])
    with pytest.raises(ModelFileError, match="belongs to another model"):
        plans_of(store, X, Y)[0].load()


@pytest.mark.parametrize("damage", ["short", "changed", "gone"])
def test_damaged_files_are_refused(written, damage):
    X, Y, store = written
    path = store.files.paths[1]
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:-8] if damage == "short" else bytes([whole[0] ^ 1]) + whole[1:])
    good, bad = plans_of(store, X, Y)
    with pytest.raises(ModelFileError, match="gone" if damage == "gone" else "damaged"):
        (good if damage == "changed" else bad).load()


def test_a_piece_that_is_written_again_replaces_the_first(written):
    """As after the death of its worker; what that had begun is no piece."""
    X, Y, store = written
    begun = store.files.paths[0].with_name("00007.rows.123")
    begun.write_bytes(b"half")
    writer = RowWriter.into(store.folder, store.firsts, 2, 1)
    assert not begun.exists()
    for _ in range(2):
        piece = writer.write(0, [(np.zeros(90, dtype=int), np.arange(90), 0, X, Y)])
    again = writer.store([piece])
    np.testing.assert_array_equal(plans_of(again, X, Y)[0].load().data.X, X)
    assert [path.name for path in again.files.paths] == ["00000.rows"]

    def broken():
        raise OSError("disk full")
        yield

    with pytest.raises(OSError, match="disk full"):
        writer.write(1, broken())
    assert [path.name for path in (store.folder / "shards").iterdir()] == ["00000.rows"]


def test_stores_with_a_file_for_each_shard_are_read(written, tmp_path):
    """As version 0.1 wrote them."""
    X, Y, store = written
    whole = [plan.load() for plan in plans_of(store, X, Y)]
    tables = []
    for k in range(2):
        leaf = whole[k].leaf_rows.owner
        rows = whole[k].leaf_rows.flat
        table = np.column_stack(
            [leaf, whole[k].ids[rows], whole[k].data.X[rows], whole[k].data.Y[rows]]
        )
        order = np.argsort(table[:, 1], kind="stable")  # in the order of the data
        tables.append(np.ascontiguousarray(table[order]))
    for path in store.files.paths:
        path.unlink()
    for k, table in enumerate(tables):
        (tmp_path / "shards" / f"{k:05d}.rows").write_bytes(table.tobytes())
    former = RowStore.stored(
        None,
        np.array([zlib.crc32(table.data) for table in tables]),
        n_rows=90,
        n_inputs=2,
        n_outputs=1,
        firsts=store.firsts,
        sizes=store.sizes,
    ).moved(tmp_path)
    assert former.files.units == [(0, 1)]  # a row is in both
    runs = [run for number in (0, 1) for run in former.read_file(number)]
    assert sum(len(leaf) for leaf, *_ in runs) == store.sizes.sum()
    for expected, plan in zip(whole, plans_of(former, X, Y), strict=True):
        found = plan.load()
        np.testing.assert_array_equal(found.ids, expected.ids)
        for name in ("X", "Y", "labels"):
            np.testing.assert_array_equal(getattr(found.data, name), getattr(expected.data, name))
        np.testing.assert_array_equal(found.leaf_rows.flat, expected.leaf_rows.flat)


def test_only_folders_without_other_files_are_written_to(written, tmp_path):
    check_empty(tmp_path)  # what an interrupted fit leaves
    check_empty(tmp_path / "new")
    (tmp_path / "shards" / "notes.txt").write_text("mine")
    with pytest.raises(ModelFileError, match="is there already"):
        check_empty(tmp_path)
    with pytest.raises(ModelFileError, match="does not exist"):
        check_empty(tmp_path / "no" / "where")
