"""Estimators that are written to files and read back, or hand over a leaf to GPyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import gpytorch
import numpy as np
from sklearn.utils.validation import check_is_fitted

from dsmgp.exact_leaf import exact_leaf
from dsmgp.guard import gradients
from dsmgp.parameters import checked
from dsmgp.storage import Saved, read_model, write_model
from dsmgp.told import Told

__all__ = ["Kept"]


class Kept(Told):
    """The methods that take a fitted estimator elsewhere."""

    get_params: Any
    n_evaluations_: int
    set_output: Any

    def to_gpytorch(self, leaf: int = 0, output: int = 0) -> gpytorch.models.ExactGP:
        """One leaf as an exact GP of GPyTorch, with its rows and hyperparameters, ready to predict.

        Parameters
        ----------
        leaf : int
            Its number: its place among the leaves of ``tree_``.
        output : int
            Which of several outputs.

        Returns
        -------
        gpytorch.models.ExactGP
            In the units the experts see (standardised ones, unless ``standardize=False``); ``likelihood`` has
            the noise.

        Examples
        --------
        >>> import numpy as np, torch
        >>> from dsmgp import DSMGPRegressor
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor("rbf", standardize=False, random_state=0).fit(X, X[:, 0] ** 2)
        >>> leaf = model.to_gpytorch(leaf=0)
        >>> leaf.train_inputs[0].shape[1]
        1
        """
        check_is_fitted(self)
        self._refuse_breaks("to_gpytorch", "kernel_ and noise_ are what was learned")
        self._refuse_stored("to_gpytorch", "kernel_ and noise_ are what was learned")
        return exact_leaf(self._settled().model, leaf, output)

    def save(
        self, path: str | Path, include_factors: bool = False, own_modules: bool = False
    ) -> None:
        """Write the fitted model to one file, whole or not at all.

        The file holds arrays (safetensors) and a header in JSON: training rows, tree, hyperparameters, gate,
        scores. Nothing in it is executed when it is loaded. It takes about as much room as the training data.

        Parameters
        ----------
        path : str or Path
            Its usual ending is ``.dsmgp``. A file of that name is replaced. After :meth:`fit_dataset` it is a
            folder, which holds the rows too.
        include_factors : bool
            Whether to write the leaves' Cholesky factors too: loading then takes no computing, and the file a
            hundred times the room or more.
        own_modules : bool
            Whether a kernel or mean of your own class, which is code, may be left out. Give it again when
            loading.

        Examples
        --------
        >>> import numpy as np
        >>> from dsmgp import DSMGPRegressor
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor(random_state=0).fit(X, X[:, 0] ** 2)
        >>> path = getfixture("tmp_path") / "square.dsmgp"
        >>> model.save(path)
        >>> bool((DSMGPRegressor.load(path).predict(X) == model.predict(X)).all())
        True
        """
        check_is_fitted(self)
        checked(self)  # a file with other parameters could not be read
        names = getattr(self, "feature_names_in_", None)
        saved = Saved(
            parameters=self.get_params(deep=False),
            state=self._settled(),
            learned=self._learned,
            kernel_scores=self.kernel_scores_,
            n_evaluations=self.n_evaluations_,
            squeeze=self._squeeze,
            target_names=self._target_names,
            feature_names=None if names is None else [str(name) for name in names],
            table=getattr(self, "_table", None),
            dates=self._dates,
            output=self._output,
        )
        write_model(path, saved, include_factors, own_modules)

    @classmethod
    def load(
        cls,
        path: str | Path,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: gpytorch.means.Mean | None = None,
    ) -> Self:
        """A fitted model from a file that :meth:`save` wrote.

        Leaves are conditioned again, unless the file holds their factors. Everything in the file is checked;
        one that is damaged, or no model, raises :class:`~dsmgp.archive.ModelFileError`.

        Parameters
        ----------
        path : str or Path
            The file, or the folder of a model that was fitted to a dataset.
        kernel, mean : GPyTorch modules, optional
            Those of your own that the file was saved without.
        """
        with gradients():
            model, saved = read_model(cls, path, kernel, mean)
        model._change_to(saved.state)
        model._learned, model.n_evaluations_ = saved.learned, saved.n_evaluations
        model.kernel_scores_ = saved.kernel_scores
        model._squeeze, model._target_names = saved.squeeze, saved.target_names
        model.adapted_, model._dates = [], saved.dates
        model.set_output(predict=saved.output)
        model.n_features_in_ = saved.state.rows.X.shape[1]
        if saved.feature_names is not None:
            model.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        if saved.table is not None:
            model._table = saved.table
        return model

    @property
    def _output(self) -> str:
        """What :meth:`set_output` has asked for."""
        return str(getattr(self, "_sklearn_output_config", {}).get("predict", "default"))
