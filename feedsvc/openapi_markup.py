"""HTML for `openapi_page`: elements, texts with backquotes, types of schemas, examples. Text is escaped here only.

`element`, `table` and the like take HTML; `prose`, `code`, `link`, `example` and `type_of` take text and make HTML.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_WIDTH = 64
"""Characters that JSON may have on one line: what a phone shows without scrolling much."""
_CODE = re.compile(r"`([^`]*)`")
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d[\d.eE+-]*)')


def element(name: str, *content: str, class_: str = "", **attributes: str) -> str:
    """HTML in an element. Attribute names have `_` for `-`."""
    if class_:
        attributes["class"] = class_
    given = "".join(
        f' {key.replace("_", "-")}="{html.escape(value)}"' for key, value in sorted(attributes.items())
    )
    return f"<{name}{given}>{''.join(content)}</{name}>\n"


def prose(text: str) -> str:
    """Text; what stands in backquotes is code."""
    parts = _CODE.split(text)
    return "".join(
        code(part) if odd % 2 else html.escape(part, quote=False) for odd, part in enumerate(parts)
    )


def code(text: str) -> str:
    return f"<code>{html.escape(text, quote=False)}</code>"


def link(target: str, text: str, *, raw: bool = False, code_: bool = False) -> str:
    """`raw`: the text is HTML already."""
    shown = text if raw else code(text) if code_ else html.escape(text, quote=False)
    return f'<a href="{html.escape(target)}">{shown}</a>'


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Cells are HTML. A narrow screen shows each row as a block."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n" for cells in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>\n"


def type_of(schema: Mapping[str, Any]) -> str:
    """What a schema takes, in words, with links to the schemas it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return link(f"#schema-{name}", name)
    if "const" in schema:
        return code(json.dumps(schema["const"], ensure_ascii=False))
    if "enum" in schema:
        return " | ".join(code(json.dumps(value, ensure_ascii=False)) for value in schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(type_of(member) for member in schema[union])
    kind = schema.get("type", "anything")
    if kind == "array" and "items" in schema:
        return f"array of {type_of(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {type_of(schema['additionalProperties'])}"
    if "contentSchema" in schema:
        return f"{kind} with JSON of {type_of(schema['contentSchema'])}"
    return html.escape(kind)


def rules_of(schema: Mapping[str, Any]) -> str:
    """Bounds and default, as a small line below the type; empty where there are none."""
    unit = {
        "minLength": " characters",
        "maxLength": " characters",
        "minItems": " items",
        "maxItems": " items",
    }
    words = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
    rules = [f"{word} {schema[name]:,}" for name, word in words.items() if name in schema]
    for lower, upper in (("minLength", "maxLength"), ("minItems", "maxItems")):
        if lower in schema and upper in schema:
            rules.append(f"{schema[lower]:,} to {schema[upper]:,}{unit[upper]}")
        elif upper in schema:
            rules.append(f"at most {schema[upper]:,}{unit[upper]}")
        elif lower in schema:
            rules.append(f"at least {schema[lower]:,}{unit[lower]}")
    if "default" in schema:
        rules.append(f"default {code(json.dumps(schema['default']))}")
    return element("small", ", ".join(rules)) if rules else ""


def example(value: Any) -> str:
    """JSON, coloured; a text as it is."""
    if isinstance(value, str):
        return f'<pre tabindex="0">{html.escape(value, quote=False)}</pre>\n'
    return f'<pre tabindex="0">{_coloured(pretty(value))}</pre>\n'


def pretty(value: Any, indent: int = 0) -> str:
    """JSON with what is short on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= _WIDTH or not isinstance(value, (dict, list)) or not value:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        lines = [f"{pad}{json.dumps(key)}: {pretty(inner, indent + 2)}" for key, inner in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    lines = [pad + pretty(inner, indent + 2) for inner in value]
    return "[\n" + ",\n".join(lines) + "\n" + " " * indent + "]"


def _coloured(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        string, colon, word, number = found.groups()
        kind = "k" if colon else "s" if string else "w" if word else "n"
        shown = html.escape(string or word or number, quote=False)
        return f'<span class="{kind}">{shown}</span>{colon or ""}'

    return _TOKEN.sub(one, text)
