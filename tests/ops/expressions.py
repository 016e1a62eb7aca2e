"""The expressions of `ops/`, and what they name, read with a parser of PromQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import promql_parser
import yaml

OPS = Path(__file__).parents[2] / "ops"
RULES = OPS / "alerts.yaml"
DASHBOARD = OPS / "grafana-dashboard.json"


class Selector(msgspec.Struct, frozen=True):
    """A metric with the label values that are asked for; `ranged`: over a time, as counters must be."""

    metric: str
    matchers: tuple[tuple[str, tuple[str, ...]], ...]
    ranged: bool


class Expression(msgspec.Struct, frozen=True):
    """`grouped`: labels by which it is summed or joined."""

    where: str
    text: str
    selectors: tuple[Selector, ...]
    grouped: frozenset[str]


class Panel(msgspec.Struct, frozen=True):
    title: str
    unit: str
    grid: dict[str, int]
    expressions: tuple[Expression, ...]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def rule(alert: str) -> dict[str, Any]:
    (found,) = [each for each in rules() if each["alert"] == alert]
    return found


def panels() -> list[Panel]:
    """Those that show something; rows are titles."""
    return [
        Panel(
            panel["title"],
            panel["fieldConfig"]["defaults"]["unit"],
            panel["gridPos"],
            tuple(read(panel["title"], target["expr"]) for target in panel["targets"]),
        )
        for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
        if panel["type"] != "row"
    ]


def expressions() -> list[Expression]:
    """All of both files."""
    of_rules = [read(each["alert"], each["expr"]) for each in rules()]
    return of_rules + [expression for panel in panels() for expression in panel.expressions]


def read(where: str, text: str) -> Expression:
    """ValueError where it is no PromQL."""
    selectors: list[Selector] = []
    grouped: set[str] = set()
    for node, ranged in _nodes(promql_parser.parse(text.replace("$__rate_interval", "1m")), ranged=False):
        if isinstance(node, promql_parser.VectorSelector):
            matchers = tuple((each.name, _values(each)) for each in node.matchers.matchers)
            selectors.append(Selector(node.name or "", matchers, ranged))
        modifier = getattr(node, "modifier", None)
        if modifier is not None:
            labels = getattr(modifier, "matching", modifier)
            grouped.update(() if labels is None else labels.labels)
    return Expression(where, text, tuple(selectors), frozenset(grouped))


def _nodes(node: Any, *, ranged: bool) -> Iterator[tuple[Any, bool]]:
    yield node, ranged
    if isinstance(node, promql_parser.MatrixSelector):
        yield from _nodes(node.vector_selector, ranged=True)
    for name in ("lhs", "rhs", "expr"):
        child = getattr(node, name, None)
        if child is not None:
            yield from _nodes(child, ranged=ranged)
    for argument in getattr(node, "args", None) or ():
        yield from _nodes(argument, ranged=ranged)


def _values(matcher: Any) -> tuple[str, ...]:
    regular = matcher.op in (promql_parser.MatchOp.Re, promql_parser.MatchOp.NotRe)
    return tuple(matcher.value.split("|")) if regular else (matcher.value,)
