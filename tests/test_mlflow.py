"""The examples of docs/serving.md for MLflow, where it is installed; it brings many packages, and is no requirement of the tests."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dsmgp import DSMGPRegressor

mlflow = pytest.importorskip("mlflow", minversion="3.0")

PAGE = Path(__file__).parents[1] / "docs" / "serving.md"


@pytest.mark.filterwarnings("default")
def test_a_logged_model_predicts_what_the_model_does(tmp_path, monkeypatch):
    section = PAGE.read_text().split("## MLflow")[1].split("\n## ")[0]
    predictor, logging = re.findall(r"```py\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    size = np.random.default_rng(0).uniform(20, 200, 100)
    houses = pd.DataFrame({"size": size, "rooms": size // 25})
    model = DSMGPRegressor("rbf", random_state=0, max_iter=3).fit(houses, 3 * size + 20)
    model.save("price.dsmgp")
    Path("price_predictor.py").write_text(predictor)
    names = {"houses": houses}
    exec(compile(logging, str(PAGE), "exec"), names)
    predicted = names["predictor"].predict(houses)
    np.testing.assert_allclose(predicted["mean"], model.predict(houses), rtol=1e-9)
    assert (predicted["low"] < predicted["mean"]).all()
    run = mlflow.last_active_run().data
    assert run.params["random_state"] == "0"
    assert run.metrics["loo_nlpd"] == pytest.approx(model.loo_score_)
