"""Whether the expression of an alert rule holds on one page of metrics.

For rules of the form `metric > number` and `metric == number`, which need no history; promtool runs the others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

from tests.ops.expressions import rule

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}


def holds(alert: str, page: str) -> bool:
    """`page` is what /metrics said. ValueError for a rule of another form, KeyError where the metric is not there."""
    expression: Any = promql_parser.parse(rule(alert)["expr"])
    compare = _OPERATORS.get(str(expression.op))
    left, right = expression.lhs, expression.rhs
    if (
        compare is None
        or not isinstance(left, promql_parser.VectorSelector)
        or left.matchers.matchers
        or not isinstance(right, promql_parser.NumberLiteral)
    ):
        raise ValueError(f"{alert} is not a comparison of one metric with a number")
    return compare(figure(page, left.name or ""), right.val)


def figure(page: str, name: str) -> float:
    """The value of a metric without labels."""
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and not sample.labels:
                return float(sample.value)
    raise KeyError(name)
