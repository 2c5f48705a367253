"""A real S3 server on this machine (moto's), and a proxy before it that answers wrongly on demand."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moto.server import ThreadedMotoServer

BUCKET = "checkpoints"
OK, ERROR_500, SLOW_DOWN_503, DENIED_403, HANG, BREAK_OFF = "ok", "500", "503", "403", "hang", "break off"
"""What the proxy does with a request: passes it on, answers an error, says nothing, or stops in the answer's middle."""
Fault = Callable[[str, str], str]
"""From a request's method and path."""
_HANG_S = 3.0
_ERRORS = {ERROR_500: (500, "InternalError"), SLOW_DOWN_503: (503, "SlowDown"), DENIED_403: (403, "AccessDenied")}


class Proxy(ThreadingHTTPServer):
    """fault: may be changed at any moment. seen: every request and what was done with it."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, target: tuple[str, int]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.fault: Fault = lambda method, path: OK
        self.seen: list[tuple[str, str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is nothing to tell."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  as in the base class
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.fault(self.command, self.path)
        self.server.seen.append((self.command, self.path, fault))
        if fault == HANG:
            time.sleep(_HANG_S)
            self.close_connection = True
            return
        if fault in _ERRORS:
            status, code = _ERRORS[fault]
            text = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
            self._answer(status, [("Content-Length", str(len(text)))], text)
            return
        connection = HTTPConnection(*self.server.target, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in ("connection", "transfer-encoding")]
        if not any(name.lower() == "content-length" for name, _ in kept):
            kept.append(("Content-Length", str(len(data))))
        self._answer(answer.status, kept, data[: len(data) // 2] if fault == BREAK_OFF else data)
        self.close_connection = self.close_connection or fault == BREAK_OFF

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815


@contextmanager
def s3_server() -> Iterator[Proxy]:
    """With an empty bucket. The proxy's url is what a client needs."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy(server.get_host_and_port())
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        connection = HTTPConnection(*proxy.target, timeout=30)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        connection.close()
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
        server.stop()


def environment(proxy: Proxy, attempts: int = 3) -> dict[str, str]:
    """Variables that send boto3 there."""
    return {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": str(attempts),
    }
