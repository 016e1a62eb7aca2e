"""`GET /docs` as one file: the OpenAPI document as HTML, with its style inside and without a script.

`python -m feedsvc.openapi` writes it beside `openapi.yaml`, so a running service only sends bytes. The page shows what
is in the document and nothing else: a word that is missing here is missing there. Everything from the document is
escaped by `openapi_markup`; backquotes are the only markup that its texts have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from feedsvc.openapi_markup import code, element, example, link, prose, rules_of, table, type_of

_STYLE = Path(__file__).with_name("openapi_page.css")
_METHODS = ("get", "post", "put", "patch", "delete", "options", "head", "trace")
_DIRECTIONS = (
    ("ClientFrame", "Frames to the service"),
    ("ServerFrame", "Frames to the client"),
)

Json = Mapping[str, Any]


def page(document: Json) -> str:
    """The whole page."""
    info, schemas = document["info"], document["components"]["schemas"]
    groups = list(_groups(document))
    framed = {_target(entry) for name, _ in _DIRECTIONS for entry in schemas[name]["oneOf"]}
    others = [name for name in schemas if name not in framed]
    main = [
        element(
            "header",
            element("h1", f"{info['title']} API"),
            element("p", prose(info["summary"]), class_="lead"),
            element("p", prose(info["description"])),
            element(
                "p",
                f"OpenAPI {document['openapi']}, version {info['version']}. For machines: "
                + link("openapi.yaml", "openapi.yaml"),
            ),
        ),
        _security(document["components"]["securitySchemes"]),
        *(
            element(
                "section",
                element("h2", tag["name"].capitalize()),
                element("p", prose(tag["description"])),
                *(_operation(document, *operation) for operation in operations),
                id=f"tag-{tag['name']}",
            )
            for tag, operations in groups
        ),
        *(_direction(schemas, *direction) for direction in _DIRECTIONS),
        element(
            "section",
            element("h2", "Other schemas"),
            *(_schema(schemas, name) for name in others),
            id="schemas",
        ),
        _everywhere(document["components"]),
        _errors(document),
        _closes(document),
    ]
    contents = _contents(groups, schemas, others) + element("a", "Contents", href="#contents", class_="back")
    body = element("nav", contents, id="contents", aria_label="Contents")
    body += element("main", _named("".join(main), schemas))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{info["title"]} API</title>'
        f"<style>{_STYLE.read_text(encoding='utf-8')}</style>"
    )
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}</body>\n</html>\n'


def _named(text: str, schemas: Json) -> str:
    """Names of schemas that prose sets as code become links."""

    def one(found: re.Match[str]) -> str:
        return link(f"#schema-{found[1]}", found[1]) if found[1] in schemas else found[0]

    return re.sub(r"<code>([A-Z]\w+)</code>", one, text)


def _groups(document: Json) -> Iterator[tuple[Json, list[tuple[str, str, Json]]]]:
    """Each tag with its operations: method, path, description."""
    for tag in document["tags"]:
        yield (
            tag,
            [
                (method, path, operation)
                for path, item in document["paths"].items()
                for method, operation in item.items()
                if method in _METHODS and tag["name"] in operation["tags"]
            ],
        )


def _contents(groups: Iterable[tuple[Json, Any]], schemas: Json, others: Iterable[str]) -> str:
    parts = [element("h2", link("#credentials", "Credentials"))]
    parts += [
        _list(
            tag["name"].capitalize(),
            f"tag-{tag['name']}",
            (
                link(f"#{operation['operationId']}", f"{_badge(method)} {element('span', path)}", raw=True)
                for method, path, operation in operations
            ),
        )
        for tag, operations in groups
    ]
    for name, title in _DIRECTIONS:
        members = (_target(entry) for entry in schemas[name]["oneOf"])
        parts.append(
            _list(title, name, (link(f"#schema-{member}", _title(schemas, member)) for member in members))
        )
    parts.append(_list("Other schemas", "schemas", (link(f"#schema-{name}", name) for name in others)))
    parts.append(
        _list(
            "Errors",
            "errors",
            (
                link("#everywhere", "On every path"),
                link("#errors", "Codes"),
                link("#closes", "Close codes"),
            ),
        )
    )
    whole = "".join(parts)
    return f'<details class="contents"><summary>Contents</summary>{whole}</details><div class="side">{whole}</div>'


def _list(title: str, anchor: str, entries: Iterable[str]) -> str:
    return element("h2", link(f"#{anchor}", title)) + element(
        "ul", *(element("li", entry) for entry in entries)
    )


def _security(schemes: Json) -> str:
    rows = (
        (
            element("span", code(name), id=f"security-{name}"),
            "header <code>Authorization: Bearer</code>"
            if scheme["type"] == "http"
            else f"{scheme['in']} parameter {code(scheme['name'])}",
            prose(scheme["description"]),
        )
        for name, scheme in schemes.items()
    )
    return element(
        "section",
        element("h2", "Credentials"),
        table(("Name", "Where", "What"), rows),
        id="credentials",
    )


def _operation(document: Json, method: str, path: str, operation: Json) -> str:
    parts = [
        element("h3", _badge(method), " ", element("code", path, class_="path")),
        element("p", prose(operation["summary"]), class_="lead"),
    ]
    if "description" in operation:
        parts.append(element("p", prose(operation["description"])))
    parts.append(element("p", "Credentials: ", _who(operation["security"])))
    if operation.get("parameters"):
        parts.append(element("h4", "Parameters"))
        parts.append(table(("Name", "Type", "Meaning"), map(_parameter, operation["parameters"])))
    if "requestBody" in operation:
        parts.append(element("h4", "Request body"))
        parts.append(element("p", prose(operation["requestBody"]["description"])))
        parts += _content(document, operation["requestBody"]["content"])
    parts.append(element("h4", "Responses"))
    parts += [_response(document, status, response) for status, response in operation["responses"].items()]
    return element("article", *parts, id=operation["operationId"])


def _badge(method: str) -> str:
    return element("b", method.upper(), class_=f"method {method}")


def _who(security: Iterable[Json]) -> str:
    names = [
        " with ".join(link(f"#security-{name}", name) for name in wanted) or "none" for wanted in security
    ]
    return " or ".join(names) if names else "none needed."


def _parameter(parameter: Json) -> tuple[str, str, str]:
    media_type = parameter.get("content", {}).get("application/json", parameter)
    schema = media_type["schema"]
    kind = type_of(schema) + (" as JSON" if media_type is not parameter else "")
    meaning = prose(parameter["description"])
    if shown := media_type.get("example"):
        meaning += example(shown)
    return (
        code(parameter["name"]) + _required(bool(parameter.get("required"))),
        f"{parameter['in']}: {kind}{rules_of(schema)}",
        meaning,
    )


def _required(required: bool) -> str:
    return element("span", "required", class_="required") if required else ""


def _response(document: Json, status: str, response: Json) -> str:
    content = dict(response.get("content", {}))
    problem = content.pop("application/problem+json", None)
    text = prose(response["description"]) if problem is None else f"A {_schema_link('Problem')}."
    parts = [element("p", element("b", status, class_=f"status s{status[0]}"), " ", text)]
    if problem is not None:
        parts.append(_problems(document, problem["examples"]))
    if headers := response.get("headers"):
        rows = (
            (code(name), type_of(header["schema"]) + rules_of(header["schema"]), prose(header["description"]))
            for name, header in headers.items()
        )
        parts.append(_fold("Headers", table(("Header", "Value", "Meaning"), rows)))
    parts += _content(document, content)
    return element("div", *parts, class_="response")


def _problems(document: Json, names: Iterable[str]) -> str:
    found = document["components"]["examples"]
    entries = (
        element("li", link(f"#error-{name}", name, code_=True), " ", prose(found[name]["summary"]))
        for name in names
    )
    return element("ul", *entries)


def _content(document: Json, content: Json) -> Iterator[str]:
    for kind, media_type in content.items():
        yield element("p", f"{code(kind)}: {type_of(media_type['schema'])}")
        if "example" in media_type:
            yield _fold("Example", example(media_type["example"]))
        if "x-stream-example" in media_type:
            yield _fold("Example", example(media_type["x-stream-example"]))
        for shown in media_type.get("examples", {}).values():
            yield _fold(f"Example: {shown['summary']}", example(shown["value"]))


def _fold(title: str, content: str) -> str:
    return element("details", element("summary", title), content)


def _direction(schemas: Json, name: str, title: str) -> str:
    members = (_target(entry) for entry in schemas[name]["oneOf"])
    return element(
        "section",
        element("h2", title),
        element("p", prose(schemas[name]["description"])),
        *(_schema(schemas, member) for member in members),
        id=name,
    )


def _schema(schemas: Json, name: str) -> str:
    schema = schemas[name]
    parts = [element("h3", _title(schemas, name)), element("p", prose(schema["description"]))]
    if "properties" in schema:
        required = schema.get("required", ())
        rows = (
            (
                code(field) + _required(field in required),
                type_of(inner) + rules_of(inner),
                prose(inner.get("description", "The name of this frame.")),
            )
            for field, inner in schema["properties"].items()
        )
        parts.append(table(("Field", "Type", "Meaning"), rows))
        if schema.get("additionalProperties") is False:
            parts.append(element("p", "No other field is taken."))
    else:
        parts.append(element("p", type_of(schema)))
    parts += (example(shown) for shown in schema.get("examples", ()))
    return element("article", *parts, id=f"schema-{name}")


def _title(schemas: Json, name: str) -> str:
    """A frame by its tag, as it is on the wire; what is none by its name."""
    tag: list[str] = schemas[name].get("properties", {}).get("type", {}).get("enum", [name])
    return tag[0]


def _everywhere(components: Json) -> str:
    document = {"components": components}
    return element(
        "section",
        element("h2", "On every path"),
        element("p", "What any request can be answered, beside what its operation says."),
        *(
            element(
                "article", element("h3", name), _response(document, _status(response, components), response)
            )
            for name, response in components["responses"].items()
        ),
        id="everywhere",
    )


def _status(response: Json, components: Json) -> str:
    (name,) = response["content"]["application/problem+json"]["examples"]
    return str(components["examples"][name]["value"]["status"])


def _errors(document: Json) -> str:
    shown = document["components"]["examples"]
    rows = (
        (
            element("span", code(row["code"]), id=f"error-{row['code']}"),
            prose(row["meaning"])
            + element("p", f"Comes as: {', '.join(row['in'])}. Retry: {'yes' if row['retryable'] else 'no'}.")
            + _fold("Problem document", example(shown[row["code"]]["value"])),
            f"HTTP {row['status']}"
            + (f", close {link('#closes', str(row['closeCode']))}" if row["closeCode"] else ""),
        )
        for row in document["x-errors"]
    )
    return element(
        "section", element("h2", "Error codes"), table(("Code", "Meaning", "Numbers"), rows), id="errors"
    )


def _closes(document: Json) -> str:
    rows = (
        (
            code(str(row["closeCode"])),
            link(f"#error-{row['code']}", row["code"], code_=True),
            prose(row["action"]),
        )
        for row in document["x-close-codes"]
    )
    return element(
        "section",
        element("h2", "Close codes"),
        table(("Code", "Error", "What the client does"), rows),
        id="closes",
    )


def _target(reference: Json) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _schema_link(name: str) -> str:
    return link(f"#schema-{name}", name)
