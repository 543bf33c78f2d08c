"""The options of TLS: what they load, and what is wrong with them in one sentence."""

from __future__ import annotations

import ssl
import subprocess
from typing import Any

import pytest

from naiad.config.listening import ListenFailed
from naiad.gateway.tls import TlsFiles
from support.certificates import Certificates, made


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made(tmp_path_factory.mktemp("tls"))


def files(certificates: Certificates, **changed: Any) -> TlsFiles:
    """Of a server with TLS, with some options changed."""
    options: dict[str, Any] = {
        "use_ssl": True,
        "server_cert": certificates.cert("server"),
        "server_key": certificates.key("server"),
    }
    return TlsFiles(skin="http", **(options | changed))


def test_without_a_wish_there_is_none() -> None:
    assert TlsFiles(skin="http").context() is None


def test_only_tls_that_is_not_outdated(certificates: Certificates) -> None:
    context = files(certificates).context()
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE


def test_mutual(certificates: Certificates) -> None:
    context = files(
        certificates, use_ssl=False, use_ssl_mutual=True, root_cert=certificates.cert("ca")
    ).context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_what_is_wrong_is_said(certificates: Certificates) -> None:
    key, cert = certificates.key("server"), certificates.cert("server")
    for changed, text in (
        ({"server_cert": None}, "give --http-server-cert"),
        ({"server_key": None}, "give --http-server-key"),
        ({"server_key": certificates.key("client")}, f"{cert} and --http-server-key"),
        ({"server_cert": key}, "cannot be used together"),
        ({"server_key": cert}, "cannot be used together"),
        ({"server_cert": "/nowhere.pem"}, "--http-server-cert /nowhere.pem: No such file"),
        ({"use_ssl": False}, "add --http-use-ssl"),
        ({"use_ssl_mutual": True}, "give --http-root-cert"),
        ({"root_cert": key}, f"--http-root-cert {key}: "),
    ):
        with pytest.raises(ListenFailed, match=text):
            files(certificates, **changed).context()


def test_nobody_is_asked_for_a_password(certificates: Certificates) -> None:
    locked = certificates.directory / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", certificates.key("server"),
         "-out", str(locked)],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(ListenFailed, match="is encrypted"):
        files(certificates, server_key=str(locked)).context()
