"""A server of Google Cloud Storage's JSON interface on this machine, as far as tensorstore uses it here."""

from __future__ import annotations

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

OBJECT = re.compile(r"/storage/v1/b/[^/]+/o/(.+)")


class Gcs(ThreadingHTTPServer):
    """Objects by name, each with its generation and its content."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, tuple[int, bytes]] = {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gcs

    def log_message(self, form: str, *values: Any) -> None:
        pass

    def do_GET(self) -> None:
        address, objects = urlsplit(self.path), self.server.objects
        if (named := OBJECT.fullmatch(address.path)) is None:
            query = parse_qs(address.query)
            low, high = query.get("startOffset", [""])[0], query.get("endOffset", ["~"])[0]
            prefix = query.get("prefix", [""])[0]
            names = [name for name in sorted(objects) if name.startswith(prefix) and low <= name < high]
            self._answer(200, json.dumps({"items": [{"name": name} for name in names]}).encode())
            return
        if (found := objects.get(unquote(named[1]))) is None:
            self._answer(404)
            return
        generation, content = found
        headers = {"x-goog-generation": str(generation)}
        if (part := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))) is None:
            self._answer(200, content, headers)
            return
        first, last = int(part[1]), min(int(part[2]), len(content) - 1)
        headers["content-range"] = f"bytes {first}-{last}/{len(content)}"
        self._answer(206, content[first : last + 1], headers)

    def do_POST(self) -> None:
        name = parse_qs(urlsplit(self.path).query)["name"][0]
        generation = self.server.objects.get(name, (0,))[0] + 1
        self.server.objects[name] = (generation, self.rfile.read(int(self.headers["content-length"])))
        self._answer(200, json.dumps({"name": name, "generation": str(generation)}).encode())

    def _answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
