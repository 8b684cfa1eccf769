"""The named kernels as scikit-learn's, an oracle for values, evidences and gradients."""

from __future__ import annotations

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

#: ARD kernels of scikit-learn.
ARD = {
    "rbf": lambda ell: sk.RBF(ell),
    "matern12": lambda ell: sk.Matern(ell, nu=0.5),
    "matern32": lambda ell: sk.Matern(ell, nu=1.5),
    "matern52": lambda ell: sk.Matern(ell, nu=2.5),
}


def covariance(kernel, A, B):
    """The covariance of a :class:`dsmgp.gp.kernels.Kernel` by scikit-learn's kernels, term by term.

    Its rational quadratic kernel is isotropic: inputs are scaled before. Its periodic kernel has one length scale, whose square
    is ours, and is taken column by column.
    """
    total = np.zeros((len(A), len(B)))
    for term in kernel.terms:
        columns = slice(None) if term.columns is None else list(term.columns)
        k = np.full_like(total, term.outputscale)
        for factor in (term, *term.times):
            k *= _factor(factor, A[:, columns], B[:, columns])
        total += k
    return total


def _factor(term, A, B):
    if term.name == "rq":
        a, b = A / term.lengthscale, B / term.lengthscale
        return sk.RationalQuadratic(1.0, term.alpha)(a, b)
    if term.name == "linear":
        return sk.DotProduct(1.0)(A / term.lengthscale, B / term.lengthscale)
    if term.name == "periodic":
        k = np.ones((len(A), len(B)))
        for d, (ell, period) in enumerate(zip(term.lengthscale, term.period, strict=True)):
            k *= sk.ExpSineSquared(np.sqrt(ell), period)(A[:, [d]], B[:, [d]])
        return k
    return ARD[term.name](term.lengthscale)(A, B)


def _base(term):
    """The kernel of a term, and by what each of its parameters changes with scikit-learn's log parameter."""
    ell = term.lengthscale
    if term.name in ARD:
        return ARD[term.name](ell), {"length_scale": ell}
    (ell,) = ell  # the others have one length scale
    if term.name == "rq":
        return sk.RationalQuadratic(ell, term.alpha), {"alpha": term.alpha, "length_scale": ell}
    base = sk.ExpSineSquared(np.sqrt(ell), term.period[0])
    return base, {"length_scale": 2.0 * ell, "periodicity": term.period[0]}


def evidence_and_gradient(kernel, noise, X, y):
    """Log evidence of one leaf with zero mean, and its gradient by the kernel parameters.

    The order of parameters is ours: of each term length scales, output scale, shape or period; then the noise. Kernels "rq",
    "periodic" and "linear" with one input only, and the latter alone.
    """
    if kernel.terms[0].name == "linear":
        return _of_linear(kernel, noise, X, y)
    total, slopes = None, []
    for term in kernel.terms:
        base, of_base = _base(term)
        scaled = sk.ConstantKernel(term.outputscale) * base
        total = scaled if total is None else total + scaled
        slopes.append({"constant_value": term.outputscale, **of_base})
    total = total + sk.WhiteKernel(noise)
    oracle = GaussianProcessRegressor(total, alpha=0.0, optimizer=None).fit(X, y)
    value, by_log = oracle.log_marginal_likelihood(oracle.kernel_.theta, eval_gradient=True)
    # scikit-learn's theta: of each term the constant, then the parameters of the base kernel by name.
    gradient, first = [], 0
    for of_term in slopes:
        by = {}
        for name in ("constant_value", *sorted(set(of_term) - {"constant_value"})):
            slope = np.atleast_1d(of_term[name])
            by[name] = by_log[first : first + len(slope)] / slope
            first += len(slope)
        order = ("length_scale", "constant_value", "alpha", "periodicity")
        gradient += [by[name] for name in order if name in by]
    return value, np.concatenate([*gradient, by_log[-1:] / noise])


def _of_linear(kernel, noise, X, y):
    """The same of ``s (1 + x x' / l^2) = s / l^2 (l^2 + x x')``."""
    (term,) = kernel.terms
    (ell,), scale = term.lengthscale, term.outputscale
    total = sk.ConstantKernel(scale / ell**2) * sk.DotProduct(ell) + sk.WhiteKernel(noise)
    oracle = GaussianProcessRegressor(total, alpha=0.0, optimizer=None).fit(X, y)
    value, by = oracle.log_marginal_likelihood(oracle.kernel_.theta, eval_gradient=True)
    return value, np.array([(by[1] - 2.0 * by[0]) / ell, by[0] / scale, by[2] / noise])
