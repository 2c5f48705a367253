"""The page's server: a few addresses, each of which checks what it gets before anything is done with it."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from autoshard.errors import AutoshardError
from autoshard.reports.page import asset
from autoshard.server.desk import BusyError, Desk
from autoshard.server.form import page
from autoshard.server.isolated import Limits, Say, TookTooMuchError
from autoshard.server.state import PLAN_FILES, State, commands, read_states
from autoshard.server.uploads import MOST_BYTES, Uploads, name_of

LIVE = ("live", "1")
"""In an address: answers as they come, one JSON value a line; `open` says of each whether another one follows."""
UPLOAD_S = 60.0
"""How long an upload may take, seconds: clients that stall would use up the connections."""
COOKIE = "autoshard_client"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src "
    "'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
DOWNLOADS = {"plan": ("plan.json", "application/json"), "report": ("report.html", "text/html"),
             "compare": ("compare.html", "text/html")}  # fmt: skip


def make_app(hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]"), limits: Limits = Limits()) -> Starlette:  # noqa: B008
    """The server as an ASGI application. hosts: names by which it may be called; others are refused, so that no page of
    another site can ask it under a name of its own. limits: of each piece of work."""
    routes = [
        Route("/", _page),
        Route("/answer", _answer),
        Route("/upload", _upload, methods=["POST"]),
        Route("/commands.txt", _commands),
        *(Route(f"/{name}", _download) for name, _ in DOWNLOADS.values()),
        *(Route(f"/{name}", _asset) for name in ("page.css", "pictures.js", "serve.css", "serve.js")),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)],
        exception_handlers={AutoshardError: _refused, HTTPException: _no_such, ClientDisconnect: _left},
    )
    app.state.desk, app.state.uploads = Desk(limits), Uploads()
    return app


async def _refused(request: Request, error: Exception) -> Response:
    status = 409 if isinstance(error, BusyError) else 503 if isinstance(error, TookTooMuchError) else 400
    return JSONResponse({"error": str(error)}, status, headers=HEADERS)


async def _no_such(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=HEADERS)


async def _left(request: Request, error: Exception) -> Response:
    """A response that nobody gets: the client has left, which is no mistake of ours to log."""
    return Response(status_code=400, headers=HEADERS)


async def _page(request: Request) -> Response:
    response = Response(page(), media_type="text/html", headers=HEADERS)
    if not _cookie(request):
        response.set_cookie(COOKIE, secrets.token_hex(16), httponly=True, samesite="strict")
    return response


async def _asset(request: Request) -> Response:
    name = request.url.path[1:]
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    own = Path(__file__).parent / name
    text = own.read_text(encoding="utf-8") if name.startswith("serve.") else asset(name)
    return Response(text, media_type=kind, headers=HEADERS)


async def _answer(request: Request) -> Response:
    pairs = request.query_params.multi_items()
    states = read_states([pair for pair in pairs if pair != LIVE])
    if LIVE not in pairs:
        return JSONResponse(await _ask(request, "answer", states), headers=HEADERS)
    said: asyncio.Queue[Any] = asyncio.Queue()
    last = asyncio.ensure_future(_ask(request, "answer", states, said.put_nowait))
    last.add_done_callback(lambda done: said.put_nowait(None))
    first = await said.get()
    if first is None:
        return JSONResponse(await last, headers=HEADERS)  # its errors have a status of their own
    return StreamingResponse(_lines(first, said, last), media_type="application/x-ndjson", headers=HEADERS)


async def _lines(first: Any, said: asyncio.Queue[Any], last: asyncio.Future[Any]) -> AsyncIterator[str]:
    """JSON lines: all that is said, then the last answer or its error. The work ends with whoever reads them."""
    try:
        while first is not None:
            yield json.dumps(first) + "\n"
            first = await said.get()
        yield json.dumps(await last) + "\n"
    except AutoshardError as error:
        yield json.dumps({"error": str(error)}) + "\n"
    finally:
        last.cancel()


async def _download(request: Request) -> Response:
    do = next(do for do, (name, _) in DOWNLOADS.items() if request.url.path == f"/{name}")
    name, kind = DOWNLOADS[do]
    found = await _ask(request, do, read_states(request.query_params.multi_items()))
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(found["text"], media_type=kind, headers=headers)


async def _commands(request: Request) -> Response:
    states = read_states(request.query_params.multi_items())
    one, other = PLAN_FILES
    last = f"autoshard report {one} -o report.html" if len(states) == 1 else f"autoshard compare {one} {other} --html"
    return PlainTextResponse("\n".join([*commands(states), last]) + "\n", headers=HEADERS)


async def _upload(request: Request) -> Response:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise AutoshardError("an upload must be JSON, with Content-Type: application/json")
    try:
        data = await asyncio.wait_for(_content(request), UPLOAD_S)
    except asyncio.TimeoutError:
        raise AutoshardError(f"an upload may take at most {UPLOAD_S:.0f} s") from None
    job = {"do": "look", "states": [], "uploads": {name_of(data): data}}
    found = await _run(request, job)
    return JSONResponse({**found, "id": request.app.state.uploads.add(data)}, headers=HEADERS)


async def _content(request: Request) -> bytes:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise AutoshardError(f"an upload may have at most {MOST_BYTES:,} bytes")
    return bytes(content)


async def _ask(request: Request, do: str, states: tuple[State, ...], say: Say | None = None) -> Any:
    uploads = {name: request.app.state.uploads.get(name) for state in states for name in state.uploads}
    given = [asdict(state) for state in states]
    return await _run(request, {"do": do, "states": given, "uploads": uploads}, say)


async def _run(request: Request, job: dict[str, Any], say: Say | None = None) -> Any:
    cookie = _cookie(request)
    client = cookie or (request.client.host if request.client else "")
    return await request.app.state.desk.ask(client, job, latest_wins=bool(cookie), say=say)


def _cookie(request: Request) -> str:
    """The client's own name, '' without one that this server may have given."""
    found = request.cookies.get(COOKIE, "")
    return found if re.fullmatch(r"[0-9a-f]{32}", found) else ""
