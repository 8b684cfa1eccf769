"""Lists of different lengths in one array."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsmgp._util.ragged import Ragged

LISTS = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8)


@given(lists=LISTS, data=st.data())
def test_lists_come_back_as_they_were_given(lists, data):
    found = Ragged.of(lists)
    assert [found[k].tolist() for k in range(len(found))] == lists
    assert found.sizes.tolist() == [len(own) for own in lists]
    assert found.owner.tolist() == [k for k, own in enumerate(lists) for _ in own]
    chosen = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=6))
    taken = found.take(np.array(chosen, dtype=np.int64))
    assert [taken[k].tolist() for k in range(len(taken))] == [lists[k] for k in chosen]


@given(lists=LISTS.filter(any), data=st.data())
def test_a_padded_rectangle_holds_the_lists_and_marks_the_rest(lists, data):
    found = Ragged.of(lists)
    chosen = data.draw(st.lists(st.integers(0, len(lists) - 1), min_size=1, max_size=6))
    where, real = found.padded(np.array(chosen))
    assert where.shape == real.shape == (len(chosen), max(len(lists[k]) for k in chosen))
    for k, at, inside in zip(chosen, where, real, strict=True):
        assert found.flat[at[inside]].tolist() == lists[k]
        assert inside.tolist() == sorted(inside.tolist(), reverse=True)
