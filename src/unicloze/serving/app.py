"""The application: endpoints, the page, the page that documents the endpoints, and errors as one sentence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from html import escape
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from unicloze.errors import UniclozeError, UsageError
from unicloze.report.frame import PAGE_STYLE
from unicloze.serving.endpoints import hugging_face_router, openai_router, own_router
from unicloze.serving.guard import FAILED, Guard, Limits, Refused, answer_of
from unicloze.serving.served_model import ServedModel
from unicloze.serving.service import Service
from unicloze.version import __version__

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
    """The page as HTML."""
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


FILES: Mapping[str, tuple[str, str, str]] = {
    "/": ("unicloze.serving", "page/index.html", "text/html"),
    "/page/report.css": (*PAGE_STYLE, "text/css"),
    "/page/page.css": ("unicloze.serving", "page/page.css", "text/css"),
    "/page/page.js": ("unicloze.serving", "page/page.js", "text/javascript"),
    "/favicon.ico": ("unicloze.serving", "page/icon.svg", "image/svg+xml"),
}
"""Package, file and type of each path of the page."""
NOT_JSON = "The request is not valid JSON: send a JSON object."


def build_app(model: ServedModel, limits: Limits | None = None, token: str | None = None) -> Guard:
    """The application that serves a model."""
    limits = limits or Limits()
    service = Service(model, limits)

    @contextlib.asynccontextmanager
    async def computing(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        try:
            yield
        finally:
            service.batcher.stop()

    app = FastAPI(
        title="unicloze",
        version=__version__,
        description="A language model to fill masks, score, generate, embed and predict.",
        docs_url=None,
        redoc_url=None,
        lifespan=computing,
    )
    for router_of in (own_router, openai_router, hugging_face_router):
        app.include_router(router_of(service))
    _add_page(app)
    _add_errors(app)
    return Guard(app, limits, token)


def _add_page(app: FastAPI) -> None:
    for path, (package, file, kind) in FILES.items():
        content = resources.files(package).joinpath(file).read_bytes()

        def served(content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

        app.add_api_route(path, served, methods=["GET", "HEAD"], include_in_schema=False, response_class=Response)
    reference = reference_page(app.openapi())

    def documented() -> Response:
        return Response(reference, media_type="text/html", headers={"Cache-Control": "no-cache"})

    app.add_api_route("/docs", documented, methods=["GET", "HEAD"], include_in_schema=False, response_class=Response)


def _add_errors(app: FastAPI) -> None:
    def answer(request: Request, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
        return answer_of(request.url.path, Refused(status, sentence, headers))

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return answer_of(request.url.path, error)

    @app.exception_handler(UniclozeError)
    async def unusable(request: Request, error: UniclozeError) -> Response:
        sentence = str(error)
        end = "" if sentence.endswith((".", "?", "!")) else "."
        return answer(request, 422 if isinstance(error, UsageError) else 500, sentence[:1].upper() + sentence[1:] + end)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, 422, _sentence(error.errors()[0]))

    @app.exception_handler(HTTPException)
    async def impossible(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # the body is not UTF-8
            return answer(request, 422, NOT_JSON)
        said = {404: "There is nothing here", 405: "This path does not take this method"}
        sentence = f"{said.get(error.status_code, str(error.detail).removesuffix('.'))}: /docs lists what there is."
        return answer(request, error.status_code, sentence, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return answer(request, 500, FAILED)


def _sentence(problem: Mapping[str, Any]) -> str:
    """What is wrong with a request, without repeating what it holds."""
    place = [str(part) for part in problem["loc"] if part != "body" and not str(part).startswith("function-")]
    kind, message = problem["type"], str(problem["msg"])
    if kind == "json_invalid":
        return NOT_JSON
    if not place:
        return "The request is not a JSON object with the content type application/json: send one."
    field = place[0]
    if kind == "missing":
        return f"The field '{place[-1]}' is missing: give it; /docs shows how."
    if kind == "extra_forbidden":
        return f"There is no field '{place[-1][:80]}': leave it out; /docs lists the fields."
    return f"The field '{field}' is invalid: {message[:1].lower()}{message[1:]}; /docs shows what it takes."
