"""A real nginx in front of a server, as the current user, with everything that it writes below one folder."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.server.jupyter import free_port
from tests.support import LIMIT_SECONDS, TooLate

# What administrators write for Jupyter: HTTP answers are buffered, websockets are passed on. An idle websocket lives as
# long as nginx's default lets it (60 s), so it is the keeper's pings that keep it.
_CONFIGURATION = """
daemon off;
worker_processes 1;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log info;
{user}
events {{ worker_connections 256; }}
http {{
    access_log {prefix}/access.log;
    client_body_temp_path {prefix}/body;
    proxy_temp_path {prefix}/proxy;
    fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi;
    scgi_temp_path {prefix}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 0;
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_buffering on;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
        }}
    }}
}}
"""


def nginx_path() -> str | None:
    """Debian keeps it where only the administrator's PATH leads."""
    return shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))


class Nginx:
    """A proxy on a port of its own; `kill` and `start` it again on the same one."""

    def __init__(self, prefix: Path, *, upstream: int) -> None:
        self.port = free_port()
        self.address = ("127.0.0.1", self.port)
        self._prefix = prefix
        prefix.mkdir()
        user = f"user {pwd.getpwuid(os.geteuid()).pw_name};" if os.geteuid() == 0 else ""
        self._configuration = prefix / "nginx.conf"
        self._configuration.write_text(
            _CONFIGURATION.format(prefix=prefix, port=self.port, upstream=upstream, user=user)
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = nginx_path()
        assert path is not None
        self._process = subprocess.Popen(
            [path, "-p", self._prefix, "-c", self._configuration, "-e", self._prefix / "error.log"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            assert self._process.poll() is None, self.text()
            try:
                socket.create_connection(self.address, timeout=LIMIT_SECONDS).close()
                return
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise TooLate(f"nginx does not listen: {self.text()}") from None
                time.sleep(0.02)

    def text(self) -> str:
        log = self._prefix / "error.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def kill(self) -> None:
        """SIGKILL, the workers too: what they have buffered is lost."""
        if self._process is None:
            return
        processes = [psutil.Process(self._process.pid)]
        processes += processes[0].children(recursive=True)
        for process in processes:
            process.kill()
        _, alive = psutil.wait_procs(processes, timeout=LIMIT_SECONDS)
        assert not alive
        self._process.wait(LIMIT_SECONDS)
        self._process = None

    close = kill


@contextmanager
def running_nginx(folder: Path, *, upstream: int) -> Iterator[Nginx]:
    """One that has started. Where none is installed the test is skipped, and fails in CI, which installs it."""
    if nginx_path() is None:
        message = "there is no nginx here (Debian, Ubuntu: apt-get install nginx-light)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    made = Nginx(folder, upstream=upstream)
    made.start()
    try:
        yield made
    finally:
        made.close()
