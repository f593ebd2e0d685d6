"""S3 on this machine: a server (moto) in a process of its own, and proxies before it that are slow and fail."""

import contextlib
import http.client
import logging
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("delay", "reset", "cut", "500", "503")
FAULT_RATE = 0.15
LONGEST_DELAY_S = 0.5


@contextlib.contextmanager
def server(folder: str) -> Iterator[str]:
    """The address of an S3 server that has the files of a folder in its bucket `data`."""
    command = [sys.executable, "-m", "tests.soak.s3", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()  # type: ignore[union-attr]
        process.stdin.close()  # type: ignore[union-attr]  (which ends it)


def serve(folder: str) -> None:
    """Serves until its input ends."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel("ERROR")
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    address = "http://{}:{}".format(*moto.get_host_and_port())
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=address, **keys)
    client.create_bucket(Bucket="data")
    for name in os.listdir(folder):
        client.upload_file(os.path.join(folder, name), "data", name)
    print(address, flush=True)
    sys.stdin.read()
    moto.stop()


class Proxy(ThreadingHTTPServer):
    """Forwards requests to a server, but delays, drops and cuts some, or answers with an error; drops all in an outage."""

    daemon_threads = True

    def __init__(self, target: str, seed: int):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = target.removeprefix("http://")
        self.chance, self.faults, self.down_until = random.Random(seed), Counter[str](), 0.0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self) -> str | None:
        """What is wrong with the next request."""
        if time.monotonic() < self.down_until:
            return "reset"
        return self.chance.choice(FAULTS) if self.chance.random() < FAULT_RATE else None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is expected."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any  # a Proxy

    def do_GET(self) -> None:
        fault = self.server.fault()
        if fault is not None:
            self.server.faults[f"S3 {fault}"] += 1
        if fault == "delay":
            time.sleep(self.server.chance.uniform(0, LONGEST_DELAY_S))
        elif fault == "reset":
            return self._reset()
        elif fault in ("500", "503"):
            return self._answer(int(fault), {"Content-Length": "0"}, b"")
        status, headers, body = self._forwarded()
        self._answer(status, headers, body[: len(body) // 2] if fault == "cut" else body)
        self.close_connection = self.close_connection or fault == "cut"
        return None

    do_HEAD = do_GET

    def _forwarded(self) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.target, timeout=30)
        try:
            connection.request(self.command, self.path, headers=dict(self.headers))
            answer = connection.getresponse()
            headers = {k: v for k, v in answer.getheaders() if k.lower() not in ("connection", "server", "date")}
            return answer.status, headers, answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    serve(sys.argv[1])
