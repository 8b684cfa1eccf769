"""The public interface: names, parameters, commands and options that users rely on. None may go without the changelog saying so."""

import inspect
import warnings
from importlib import import_module

import pytest
import typer.main

from dsmgp import DSMGPRegressor
from dsmgp._util.machine import has_torch
from dsmgp.cli.app import app
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution

NAMES = {
    "dsmgp": """
        ChangePoints DSMGPRegressor ExtrapolationWarning FactorisationWarning Mixture ModelFileError __version__ load
    """,
    "dsmgp.archive": "ModelFileError",
    "dsmgp.baselines": """
        BCM ConstantBaseline ExactGP GPoE GRBCM KISSGP LinearBaseline MoE NaiveLocalExperts PoE
        RBCM SVGP
    """,
    "dsmgp.botorch": "DSMGPModel MixturePosterior",
    "dsmgp.breaks": "BreakingLeaf ChangePoints",
    "dsmgp.changepoints": "ChangePointLeaf ChangePoint ChangePoints Splits",
    "dsmgp.datasets": "DATASETS Dataset load",
    "dsmgp.distributed": "Executor LocalExecutor",
    "dsmgp.executor": "Executor LocalExecutor",
    "dsmgp.explain": "Explanation PermutationImportance",
    "dsmgp.mixture": "Mixture",
    "dsmgp.notices": "FactorisationWarning",
    "dsmgp.plots": """
        plot_calibration plot_changepoints plot_dependence plot_learning plot_observed plot_pit
        plot_predictive plot_relevance plot_residuals plot_splits plot_tree
    """,
    "dsmgp.progress": "Enough Listener listening span stopping tick StopFitting",
    "dsmgp.ray": "RayExecutor",
    "dsmgp.report": "report_html write_report",
    "dsmgp.reproduce": "NAMES reproduce reproduce_all",
    "dsmgp.scores": """
        coverage crps gaussian_nlpd interval_width joint_nlpd mae nlpd pit pit_histogram r2 rmse
        score_each score_table
    """,
    "dsmgp.splits": "ChangePoint Splits",
    "dsmgp.tree": """
        Leaf Node Product Region Sum box depth induced_tree leaves log_n_induced_trees
        n_induced_trees nodes
    """,
}
PARAMETERS = """
    kernel mean noise_variance structure leaf_size sum_children product_children depth weights
    local_scale effort optimizer objective max_iter n_restarts standardize device dtype
    memory_limit executor checkpoint random_state verbose input_warp output_warp
    metric missing categorical_features hypotheses variances priors outputs boosted_trees
    """
ATTRIBUTES = """
    adapted_ coordinates_ feature_importances_ feature_names_in_ kernel_ kernel_posterior_ kernel_scores_ leaf_noise_ log_marginal_likelihood_
    fit_times_ loo_score_ loo_score_new_inputs_ n_evaluations_ n_features_in_ n_induced_trees_ n_iter_
    noise_ output_loading_ posterior_weights_ row_ids_ tree_
    """
METHODS = {
    "changepoints": "level dimension",
    "explain": "X background n_samples random_state include_noise",
    "finetune": "max_iter similarity parameters rounds weights",
    "fit": "X y noise",
    "fit_dataset": "data target features drop categories missing store",
    "forget": "row_ids adapt",
    "noise_at": "X",
    "partial_fit": "X y noise adapt",
    "permutation_importance": "X y n_repeats scores random_state",
    "plot_calibration": "X y ax",
    "plot_changepoints": "level dimension ax",
    "plot_dependence": "X feature output level n_points ax",
    "plot_kernels": "dimension n_bins ax",
    "plot_learning": "ax",
    "plot_observed": "X y output ax",
    "plot_pit": "X y n_bins ax",
    "plot_predictive": "X y level n_points ax",
    "plot_relevance": "n_most ax",
    "plot_residuals": "X y output ax",
    "plot_splits": "dimension n_bins ax",
    "plot_tree": "ax",
    "predict": "X return_std return_cov include_noise quantiles",
    "predict_dataset": "data out interval quantiles keep include_noise",
    "predict_dist": "X include_noise",
    "sample_y": "X n_samples random_state include_noise",
    "save": "path include_factors own_modules",
    "set_output": "transform predict",
    "split_posterior": "dimension",
    "summary": "",
    "to_gpytorch": "leaf output",
    "load": "path kernel mean",
}
MIXTURE = """
    cdf component_means interval joined joint_logpdf logcdf logpdf logsf marginal mean median pdf ppf quantile
    sample sf std var
    """
COMMANDS = {
    "fit": """
        --boosted-trees --categories --changes-along --checkpoint --dayfirst --debug --decimal --device --drop --effort --encoding --executor
        --feature --force --hypotheses --include-factors --input-warp --json --kernel --leaf-size --max-iter --mean
        --memory-limit --metric --missing --na --on-interrupt --out --outliers --output-warp --priors --quiet --seed --structure --target --text
        --weights
        """,
    "predict": "--dayfirst --debug --decimal --encoding --exact --function --interval --json --keep --na --out --quantiles",
    "evaluate": "--dayfirst --debug --decimal --encoding --json --na",
    "report": "--dayfirst --debug --decimal --encoding --json --na --out --title",
    "info": "--debug --json",
    "demo": "--debug --json",
    "reproduce": "--debug --json --out --quick --seeds",
}


@pytest.mark.parametrize("module", NAMES)
def test_public_names_import_from_where_they_are_documented(module):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # former paths, see tests/test_imports.py
        if module == "dsmgp.botorch":
            pytest.importorskip("botorch")
        found = import_module(module)
        names = NAMES[module].split()
        if not has_torch():
            names = [name for name in names if name not in ("KISSGP", "SVGP")]
        assert [name for name in names if not hasattr(found, name)] == []


def test_the_estimator_keeps_its_parameters_in_their_order():
    assert list(inspect.signature(DSMGPRegressor).parameters) == PARAMETERS.split()


def test_the_estimator_keeps_its_methods_and_their_parameters():
    for name, expected in METHODS.items():
        method = inspect.getattr_static(DSMGPRegressor, name)
        function = method.__func__ if isinstance(method, classmethod) else method
        parameters = list(inspect.signature(function).parameters)[1:]
        assert parameters[: len(expected.split())] == expected.split(), name


def test_a_fitted_estimator_has_its_attributes(wavy):
    import pandas as pd

    X, y = wavy
    model = DSMGPRegressor(leaf_size=60, random_state=0, max_iter=2, hypotheses=None)
    assert [name for name in ATTRIBUTES.split() if hasattr(model, name)] == []
    model.fit(pd.DataFrame(X, columns=["a", "b"]), y)
    assert [name for name in ATTRIBUTES.split() if not hasattr(model, name)] == []
    distribution = model.predict_dist(pd.DataFrame(X[:2], columns=["a", "b"]))
    assert isinstance(distribution, PredictiveDistribution)
    assert [name for name in MIXTURE.split() if not hasattr(distribution, name)] == []


def test_commands_keep_their_options():
    commands = typer.main.get_command(app).commands
    assert set(COMMANDS) <= set(commands)
    for name, expected in COMMANDS.items():
        options = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(expected.split()) <= options, name
