"""Quantiles of what was measured, and means with their confidence."""

import math
import statistics
from collections.abc import Sequence
from typing import Final

_STUDENT: Final = statistics.NormalDist().inv_cdf(0.975)


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that `part` of all do not exceed; NaN for none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def mean_ratio(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of at least two ratios, and its 95 % confidence interval.

    By Student's t, whose quantile is expanded: right to two percent from 10 ratios on.
    """
    logs = [math.log(ratio) for ratio in ratios]
    mean, freedom = statistics.fmean(logs), len(logs) - 1
    student = _STUDENT + (_STUDENT**3 + _STUDENT) / (4 * freedom)
    half = student * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
