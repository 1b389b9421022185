"""The application: endpoints, the page, and errors as one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from unicloze.errors import UniclozeError, UsageError
from unicloze.report.frame import PAGE_STYLE
from unicloze.serving import endpoints, hugging_face_endpoints, openai_endpoints
from unicloze.serving.guard import Guard, error_body
from unicloze.serving.limits import Limits, Refused
from unicloze.serving.reference import reference_page
from unicloze.serving.served_model import ServedModel
from unicloze.serving.service import Service
from unicloze.version import __version__

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
    """The application that serves a model.

    Args:
        model: The model.
        limits: Limits of requests.
        token: Token that requests must carry; without one, only requests to this machine's own address are answered.
    """
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
    for part in (endpoints, openai_endpoints, hugging_face_endpoints):
        app.include_router(part.router_of(service))
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
    def answer(
        request: Request,
        status: int,
        sentence: str,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
    ) -> Response:
        body = error_body(request.url.path, status, sentence, code)
        return Response(body, status, headers=dict(headers or {}), media_type="application/json")

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return answer(request, error.status, error.sentence, error.headers, error.code)

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
        return answer(request, 500, "The server failed: its log says where.")


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
