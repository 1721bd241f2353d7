"""What stands between: a Hub's base path, nginx, TLS, and addresses at which there is nothing of ours."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_cmdop.client.session import Session
from tests.remote.far import Far
from tests.server.jupyter import Server, Servers, free_port
from tests.server.nginx import Nginx, running_nginx
from tests.support import Gate, Sessions, finish_cli, wait_for_running


@pytest.fixture(scope="module")
def lone(module_session: Sessions) -> Session:
    return module_session("on-the-way")


def everything(far: Far, session: Session) -> None:
    """What a person does in a day."""
    before = list(session.log())[-1]["seq"]
    following = far.start("log", session.name, "--follow", "--after", str(before))
    assert (
        far("run", session.name, "print('x' * 3_000_000, end='')", json_output=False).out == "x" * 3_000_000
    )
    assert far("read", session.name, "--after", f"0:{before}").data["items"]
    assert far("take", session.name).data["driver"] == session.actor
    assert far("release", session.name).data["driver"] is None
    assert following.stdout is not None
    while '"released"' not in following.stdout.readline():
        pass
    following.terminate()
    following.communicate()


@pytest.fixture
def ann(servers: Servers) -> Server:
    """A server as a JupyterHub starts it for ann."""
    return servers("--ServerApp.base_url=/user/ann/", wait=False)


def test_below_a_base_path(ann: Server, token_file: Path, lone: Session) -> None:
    ann._until(lambda: ann.get("/user/ann/api/kernels").status == 200)
    everything(Far(f"{ann.url}/user/ann", token_file), lone)
    everything(Far(f"{ann.url}/user/ann/lab", token_file), lone)
    wrong = Far(ann.url, token_file)("status", lone.name, code=1)
    assert (
        "no Jupyter server with jupyter_cmdop is at this address" in wrong.err
        or "sends its visitors" in wrong.err
    )


@pytest.fixture
def nginx(server: Server, tmp_path: Path) -> Iterator[Nginx]:
    with running_nginx(tmp_path / "nginx", upstream=server.port) as made:
        yield made


def test_behind_nginx(nginx: Nginx, token_file: Path, lone: Session, gate: Gate) -> None:
    """Everything passes; when the proxy is killed under a run, the run goes on over the next one."""
    far = Far(f"http://127.0.0.1:{nginx.port}/", token_file)
    everything(far, lone)
    running = far.start("run", lone.name, f"{gate.code}\nprint('through')", json_output=False)
    wait_for_running(lone)
    nginx.kill()
    nginx.start()
    gate.open()
    result = finish_cli(running)
    assert (result.code, result.out) == (0, "waiting\nthrough\n"), result.err


def test_a_proxy_without_its_server(tmp_path: Path, token_file: Path) -> None:
    with running_nginx(tmp_path / "nginx", upstream=free_port()) as made:
        result = Far(f"http://127.0.0.1:{made.port}/", token_file)("status", "any", code=1)
    assert "cannot answer now (HTTP 502)" in result.err


def test_nobody_there(token_file: Path) -> None:
    result = Far(f"http://127.0.0.1:{free_port()}/", token_file)("status", "any", code=1)
    assert "cannot be reached" in result.err


def test_tls_is_verified(servers: Servers, token_file: Path, lone: Session, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate)),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("there is no openssl here")
    server = servers(tls=(certificate, key))
    far = Far(server.url, token_file)
    refused = far("status", lone.name, code=1)
    assert "cannot be verified" in refused.err
    assert "--ca-file" in refused.err
    known = Far(server.url, token_file, {"CMDOP_CA_FILE": str(certificate)})
    everything(known, lone)
    assert known("status", lone.name, "--ca-file", str(certificate)).data["name"] == lone.name
    plain = Far(server.url.replace("https", "http"), token_file)("status", lone.name, code=1)
    assert plain.code == 1
    wrong = Far(server.url, token_file)("status", lone.name, "--ca-file", str(key), code=2)
    assert wrong.data["error"]["code"] == "bad_ca_file"
