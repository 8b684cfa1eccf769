"""Levels that differ only in case and blanks are one, in training and later."""

import numpy as np
import pandas as pd

from dsmgp import DSMGPRegressor
from dsmgp.data.columns.learning import encode_table
from dsmgp.data.columns.schema import ColumnSchema

TEXTS = ["Yes", "no", "YES ", "Yes", "n o", "no", " no", "Yes", "No", "yes"]


def test_spellings_of_a_level_are_merged_with_a_remark():
    table = pd.DataFrame({"c": TEXTS, "y": np.arange(10.0)})
    encoded = encode_table(table, ["y"])
    assert encoded.schema.input_names == ["c=Yes", "c=n o", "c=no"]
    np.testing.assert_array_equal(encoded.X.sum(axis=0), [5, 1, 4])
    assert "differ only in case and blanks" in encoded.remarks[0]
    assert "' no', 'No', 'YES '" in encoded.remarks[0]
    assert ColumnSchema.from_dict(encoded.schema.to_dict()) == encoded.schema


def test_letters_and_different_words_stay_apart():
    table = pd.DataFrame({"c": ["a", "A", "b", "b"], "d": ["uv", "u v", "uv", "w"], "y": range(4)})
    schema = encode_table(table.astype({"y": float}), ["y"]).schema
    assert schema.input_names == ["c=A", "c=a", "c=b", "d=u v", "d=uv", "d=w"]
    assert not any(column.respelt for column in schema.columns)


def test_new_rows_may_be_spelt_otherwise(recwarn):
    X = pd.DataFrame({"c": TEXTS, "x": np.arange(10.0)})
    model = DSMGPRegressor("rbf", optimizer=None, random_state=0).fit(X, np.arange(10.0) % 3)
    np.testing.assert_array_equal(
        model.predict(pd.DataFrame({"c": ["yES", "NO"], "x": 0.5})),
        model.predict(pd.DataFrame({"c": ["Yes", "no"], "x": 0.5})),
    )
    assert not recwarn.list
    # Levels that are declared are taken as they are.
    declared = DSMGPRegressor("rbf", optimizer=None, categorical_features=["c"])
    assert len(declared.fit(X, np.arange(10.0) % 3).state_.schema.input_names) == 8
