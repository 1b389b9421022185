"""The application: endpoints, the page, the page that documents the endpoints, and errors as one sentence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException

from unicloze.errors import UniclozeError, UsageError
from unicloze.report.frame import PAGE_STYLE, render
from unicloze.report.page import ANY
from unicloze.serving.endpoints import hugging_face_router, openai_router, own_router
from unicloze.serving.guard import FAILED, Guard, Limits, Refused, answer_of, sentence_of, too_large
from unicloze.serving.served_model import ServedModel
from unicloze.version import __version__

PAGE = resources.files("unicloze.serving") / "page"
FILES = {"/": "index.html", "/page/page.css": "page.css", "/page/page.js": "page.js", "/favicon.ico": "icon.svg"}
"""File of each path of the page."""
NO_CACHE = {"Cache-Control": "no-cache"}
NOT_JSON = "The request is not valid JSON: send a JSON object."


def build_app(model: ServedModel, token: str | None = None) -> Guard:
    """The application that serves a model."""

    @contextlib.asynccontextmanager
    async def computing(_: FastAPI) -> AsyncIterator[None]:
        model.batcher.start()
        try:
            yield
        finally:
            model.batcher.stop()

    app = FastAPI(
        title="unicloze",
        version=__version__,
        description="A language model to fill masks, score, generate, embed and predict.",
        docs_url=None,
        redoc_url=None,
        lifespan=computing,
        max_body_size=model.limits.body,
    )
    # With a token, /health answers strangers too, who must not see the text that a model was trained on.
    app.include_router(own_router(model, ANY[1] if token else model.example))
    for router_of in (openai_router, hugging_face_router):
        app.include_router(router_of(model))
    _add_page(app)

    async def answer(request: Request, error: Exception) -> Response:
        return answer_of(request.url.path, _refusal(error, model.limits))

    for kind in (Refused, UniclozeError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    return Guard(app, model.limits, token)


def _add_page(app: FastAPI) -> None:
    rendered = {
        "/docs": HTMLResponse(reference_page(app.openapi()), headers=NO_CACHE),
        "/page/report.css": Response(render(PAGE_STYLE), media_type="text/css", headers=NO_CACHE),
    }
    answers = rendered | {path: FileResponse(str(PAGE / file), headers=NO_CACHE) for path, file in FILES.items()}
    for path, answer in answers.items():
        app.add_route(path, partial(_same, answer), include_in_schema=False)


async def _same(answer: Response, request: Request) -> Response:
    return answer


def reference_page(openapi: Mapping[str, Any]) -> str:
    """The page about the endpoints as HTML."""
    schemas = openapi.get("components", {}).get("schemas", {})

    def resolved(content: Mapping[str, Any]) -> Mapping[str, Any]:
        schema = content.get("content", {}).get("application/json", {}).get("schema") or {}
        found: Mapping[str, Any] = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
        return found

    endpoints = []
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            request, answer = resolved(operation.get("requestBody", {})), resolved(operation["responses"]["200"])
            fields = request.get("properties", {}).items()
            endpoint = {"name": f"{method.upper()} {path}", "path": path, "summary": operation.get("summary", "")}
            tables = [("Request", _fields(request, defaults=True)), ("Answer", _fields(answer))]
            example = {name: field["examples"][0] for name, field in fields if field.get("examples")}
            endpoints.append({**endpoint, "tables": tables, "example": example})
    return render("serving/page/endpoints.html", endpoints=endpoints)


def _fields(schema: Mapping[str, Any], *, defaults: bool = False) -> list[tuple[str, str, str, str]]:
    """Name, type, default and description of each field."""
    found = []
    for name, field in schema.get("properties", {}).items():
        value = field.get("default") if defaults and name not in schema.get("required", ()) else None
        found.append((name, _type(field), "" if value is None else json.dumps(value), field.get("description", "")))
    return found


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2].lower()
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_type, field["anyOf"])))
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}" if field.get("items") else "list"
    name = str(field.get("type", "anything"))
    return {"string": "text", "null": "nothing"}.get(name, name)


def _refusal(error: Exception, limits: Limits) -> Refused:
    """What an error is answered with."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, UniclozeError):
        return Refused(422 if isinstance(error, UsageError) else 500, sentence_of(str(error)))
    if isinstance(error, RequestValidationError):
        return Refused(422, _sentence(error.errors()[0]))
    if not isinstance(error, HTTPException):
        return Refused(500, FAILED)
    if error.status_code == 413:
        return too_large(limits)
    if error.status_code == 400:  # the body is not UTF-8
        return Refused(422, NOT_JSON)
    said = {404: "There is nothing here", 405: "This path does not take this method"}
    sentence = f"{said.get(error.status_code, str(error.detail).removesuffix('.'))}: /docs lists what there is."
    return Refused(error.status_code, sentence, error.headers)


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
