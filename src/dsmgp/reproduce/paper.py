"""Results reported in the paper (Trapp et al., AISTATS 2020), for comparison."""

from __future__ import annotations

__all__ = ["APPROXIMATION", "DATASETS", "RESULTS", "SHARING", "SIZES", "TIMINGS"]

#: Data sets of Table 2, in its order.
DATASETS = ("airfoil", "parkinsons", "kin40k", "house", "protein", "year", "flight")

#: Table 2: MAE and NLPD.
RESULTS: dict[str, dict[str, tuple[float, float]]] = {
    "airfoil": {
        "Const": (0.82, 1.43), "LR": (0.53, 1.05), "GP": (0.50, 0.99), "SVGP": (0.32, 0.59),
        "KISS": (0.51, 1.00), "gPoE": (0.35, 0.72), "rBCM": (0.34, 3.21), "DSMGP": (0.32, 0.57),
    },
    "parkinsons": {
        "Const": (0.85, 2.88), "LR": (0.82, 2.79), "GP": (0.78, 2.73), "SVGP": (0.68, 2.52),
        "KISS": (0.78, 2.73), "gPoE": (0.84, 4.49), "rBCM": (0.80, 3.80), "DSMGP": (0.74, 2.66),
    },
    "kin40k": {
        "Const": (0.81, 1.42), "LR": (0.81, 1.42), "GP": (0.79, 1.39), "SVGP": (0.25, 0.37),
        "KISS": (0.79, 1.39), "gPoE": (0.80, 2.68), "rBCM": (0.43, 4.14), "DSMGP": (0.78, 1.38),
    },
    "house": {
        "Const": (0.62, 1.45), "LR": (0.49, 1.30), "SVGP": (0.39, 1.06), "KISS": (0.43, 1.10),
        "gPoE": (0.50, 4.61), "rBCM": (0.40, 4.58), "DSMGP": (0.39, 1.11),
    },
    "protein": {
        "Const": (0.89, 1.41), "LR": (0.71, 1.25), "SVGP": (0.57, 1.11), "KISS": (0.64, 1.19),
        "gPoE": (0.82, 2.38), "rBCM": (0.70, 4.57), "DSMGP": (0.55, 1.11),
    },
    "year": {
        "Const": (0.74, 1.41), "LR": (0.73, 1.39), "SVGP": (0.57, 1.21), "gPoE": (0.74, 3.78),
        "rBCM": (0.74, 1.49), "DSMGP": (0.72, 1.38),
    },
    "flight": {
        "Const": (0.56, 2.87), "LR": (0.54, 2.85), "SVGP": (0.54, 2.80), "gPoE": (0.56, 8.05),
        "rBCM": (0.56, 11.51), "DSMGP": (0.54, 2.84),
    },
}  # fmt: skip

#: Table 1: seconds of one iteration of hyperparameter optimisation, on an i7-6900k.
TIMINGS: dict[str, dict[str, float]] = {
    "airfoil": {"GP": 0.28, "gPoE": 0.05, "rBCM": 0.05, "DSMGP": 0.06},
    "parkinsons": {"GP": 42.61, "gPoE": 1.21, "rBCM": 1.30, "DSMGP": 1.27},
    "kin40k": {"GP": 107.65, "gPoE": 0.86, "rBCM": 0.87, "DSMGP": 0.89},
    "house": {"gPoE": 2.55, "rBCM": 2.55, "DSMGP": 2.59},
    "protein": {"gPoE": 2.69, "rBCM": 2.70, "DSMGP": 2.53},
    "year": {"gPoE": 28.82, "rBCM": 28.90, "DSMGP": 22.17},
}

#: Approximation error on Kin40k: RMSE by rows of an expert.
APPROXIMATION: dict[str, dict[int, float]] = {
    "GP": {10: 0.1299, 100: 0.1299, 1000: 0.1299, 10000: 0.1299},
    "gPoE": {10: 0.8929, 100: 0.5362, 1000: 0.2204, 10000: 0.1299},
    "rBCM": {10: 0.8706, 100: 0.4821, 1000: 0.2024, 10000: 0.1299},
    "DSMGP": {10: 0.8113, 100: 0.3226, 1000: 0.1632, 10000: 0.1299},
}

#: Seconds for all decompositions of a DSMGP on 1,000 rows, by the number of partitions.
SHARING: dict[str, dict[int, float]] = {
    "naive": {4: 0.1546, 9: 0.3471, 16: 0.6265, 25: 0.9695, 36: 1.4005, 49: 1.9106, 64: 2.5066},
    "shared": {4: 0.1111, 9: 0.2135, 16: 0.3573, 25: 0.5171, 36: 0.7227, 49: 0.9232, 64: 1.1862},
}

#: Mixture components, which the paper counts as induced trees.
SIZES: dict[str, float] = {
    "airfoil": 5.44e2,
    "parkinsons": 1.41e3,
    "kin40k": 6.71e7,
    "house": 1.68e7,
    "protein": 7.21e16,
    "year": 4.30e18,
}
