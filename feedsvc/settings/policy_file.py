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
        data = yaml.load(content.decode("utf-8"), _StrictLoader)  # noqa: S506 - a subclass of SafeLoader
        return Policy.parse(data)
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
