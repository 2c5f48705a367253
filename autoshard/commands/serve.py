"""`autoshard serve`: a page on this machine that plans while people try values."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from errno import EADDRNOTAVAIL
from importlib.util import find_spec
from typing import Any

from autoshard.commands.output import say
from autoshard.commands.parser import Parser
from autoshard.errors import AutoshardError
from autoshard.files.option_values import text, whole

HOST, PORT = "127.0.0.1", 8421
SUMMARY = "a page on this machine that plans while you try values"
USAGE = "autoshard serve [--host ADDRESS] [--port N]"
DESCRIPTION = """\
Serve a page on this machine: model, instance, nodes, sequence, batch, pins and prices are fields, and the plan follows.
The address holds all of that, so a link shares it. Only this machine can reach the page, unless --host says otherwise;
there is no password. It reads no files but uploads, and runs no code. Ctrl-C ends it.

  autoshard serve
  autoshard serve --port 9000"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--host", type=text, metavar="ADDRESS", default=HOST, help=f"address to listen at (default: {HOST})"
    )
    parser.add_argument(
        "--port", type=whole(0, 65535), metavar="N", default=PORT, help=f"0 takes any free one (default: {PORT})"
    )


def run(values: Mapping[str, Any]) -> int:
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise AutoshardError(f"serve needs {name}: pip install 'autoshard[serve]'")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # a search uses one thread; more would only take address space
    host = values["host"]
    listening = _listen(host, values["port"])
    port = listening.getsockname()[1]
    import uvicorn

    from autoshard.server.app import make_app
    from autoshard.server.isolated import start

    start()
    hosts = ("localhost", "127.0.0.1", "[::1]") if host in ("127.0.0.1", "localhost", "::1") else ("*",)
    shown = f"[{host}]" if ":" in host else host
    say(f"http://{shown}:{port}/  Ctrl-C ends it")
    config = uvicorn.Config(
        make_app(hosts),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http="h11",
        loop="asyncio",
        limit_concurrency=1000,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    uvicorn.Server(config).run(sockets=[listening])
    return 0


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Whether to log it: requests that are cancelled when the server ends are no errors."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that is bound. Raises AutoshardError for an address that is none or in use."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(512)
        except OSError:
            listening.close()
            raise
    except socket.gaierror as error:
        raise AutoshardError(f"host={host} is no address that can be listened at: {error.strerror}") from None
    except OSError as error:
        advice = "--host must be of this machine" if error.errno == EADDRNOTAVAIL else "another --port may be free"
        raise AutoshardError(f"port={port} of host={host} cannot be listened at: {error.strerror}; {advice}") from None
    return listening
