"""Reads the policy file: YAML with the two traps closed that would change a policy in silence.

A key given twice is an error (YAML loaders take the last one), and only plain data is built. Everything about the
content is `core/policy_parser.py`.
"""

from __future__ import annotations

from typing import Any

import yaml

from feedsvc.core.limits import LIMITS
from feedsvc.core.policy import Policy, PolicyError

MAX_BYTES = int(LIMITS["policy_file_bytes"].default)


def parse_policy_file(content: bytes) -> Policy:
    """The policy in a file. Raises `PolicyError` with all problems; lines are counted from 1."""
    if len(content) > MAX_BYTES:
        raise PolicyError([f"the file is larger than {MAX_BYTES} bytes"])
    try:
        text = content.decode("utf-8")
        data = yaml.load(text, _StrictLoader)  # noqa: S506 - a subclass of SafeLoader
        try:
            return Policy.parse(data)
        except PolicyError as error:
            raise PolicyError(_with_lines(text, error.problems)) from None
    except UnicodeDecodeError:
        raise PolicyError(["the file is not UTF-8"]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}: " if mark is not None else ""
        raise PolicyError([f"{place}{error.problem or 'not YAML'}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(["the file is not YAML"]) from None
    except RecursionError:
        raise PolicyError(["the file is nested too deeply"]) from None


def _with_lines(text: str, problems: list[str]) -> list[str]:
    """The problems, each with the line of the deepest key that its place (`collections.orders.filter: ...`) names."""
    root = yaml.compose(text, _StrictLoader)
    return [
        problem if (line := _line_of(root, problem.partition(": ")[0])) is None else f"line {line}: {problem}"
        for problem in problems
    ]


def _line_of(node: yaml.Node | None, place: str) -> int | None:
    line: int | None = None
    while place:
        children: list[tuple[str, yaml.Node, yaml.Node]] = []
        if isinstance(node, yaml.MappingNode):
            children = [(key.value, key, value) for key, value in node.value if isinstance(key.value, str)]
        elif isinstance(node, yaml.SequenceNode):
            children = [(str(index), value, value) for index, value in enumerate(node.value)]
        # A key may hold dots itself: the longest that fits is meant.
        fitting = [child for child in children if f"{place}.".startswith(f"{child[0]}.")]
        if not fitting:
            break
        name, key, node = max(fitting, key=lambda child: len(child[0]))
        line, place = key.start_mark.line + 1, place[len(name) + 1 :]
    return line


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)
