"""Explanations: Shapley values of single predictions, and the importance of columns over all rows.

Everything is in terms of the columns of the user's table: the inputs that one column became, such as those of a category's
levels, are exchanged together.
"""

from dsmgp.explain.explanation import Explanation
from dsmgp.explain.permutation import PermutationImportance

__all__ = ["Explanation", "PermutationImportance"]
