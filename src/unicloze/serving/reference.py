"""The page that documents the endpoints, made from their OpenAPI description; it loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>unicloze: endpoints</title>
<link rel="icon" href="/favicon.ico" type="image/svg+xml">
<link rel="stylesheet" href="/page/report.css">
<link rel="stylesheet" href="/page/page.css">
</head>
<body>
<main>
<header>
<h1>Endpoints</h1>
<p class="subtitle">The same as <a href="/openapi.json">/openapi.json</a>, for people. <a href="/">Back to the page</a>.</p>
</header>
"""
_TAIL = "</main>\n</body>\n</html>\n"


def reference_page(openapi: Mapping[str, Any]) -> str:
    """The page as HTML.

    Args:
        openapi: The OpenAPI description.
    """
    schemas = openapi.get("components", {}).get("schemas", {})
    parts = []
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            parts.append(_endpoint(path, method, operation, schemas))
    return _HEAD + "".join(parts) + _TAIL


def _endpoint(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    name = f"{method.upper()} {path}"
    parts = [f"<h2><code>{escape(name)}</code></h2><p>{escape(operation.get('summary', ''))}.</p>"]
    request = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if request is not None:
        schema = _resolved(request, schemas)
        parts.append(_fields("Request", schema, schemas))
        example = _example(schema, schemas)
        if example:
            parts.append(
                f"<pre tabindex='0'>curl localhost:8000{escape(path)} --json '{escape(json.dumps(example))}'</pre>"
            )
    for status, answer in operation.get("responses", {}).items():
        shape = answer.get("content", {}).get("application/json", {}).get("schema")
        if status == "200" and shape and _resolved(shape, schemas).get("properties"):
            parts.append(_fields("Answer", _resolved(shape, schemas), schemas))
    return f'<section class="panel endpoint">{"".join(parts)}</section>\n'


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    return found


def _fields(caption: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><th scope='row'><code>{escape(name)}</code></th><td>{escape(_type(field, schemas))}"
        f"{_default(field) if name not in required and caption == 'Request' else ''}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    )
    return (
        f"<div class='scroll' tabindex='0' role='group' aria-label='{caption}'><table><caption>{caption}</caption>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    return "" if value is None else f" = <code>{escape(json.dumps(value))}</code>"


def _type(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2].lower()
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(one, schemas) for one in field["anyOf"]))
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        inner = field.get("items")
        return f"list of {_type(inner, schemas)}" if inner else "list"
    name = str(field.get("type", "anything"))
    return {"string": "text", "null": "nothing"}.get(name, name)


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: field["examples"][0] for name, field in properties.items() if field.get("examples")}
