"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files in one directory: `ca` has signed `server` (localhost) and `client`; `stranger`
    is signed by nobody that anybody knows."""

    directory: Path

    def cert(self, name: str) -> str:
        return str(self.directory / f"{name}.pem")

    def key(self, name: str) -> str:
        return str(self.directory / f"{name}.key")

    def options(self, skin: str, kind: str) -> list[str]:
        """Of a server; `kind`: "use-ssl" or "use-ssl-mutual"."""
        files = [f"--{skin}-server-cert", self.cert("server")]
        files += [f"--{skin}-server-key", self.key("server")]
        if kind == "use-ssl-mutual":
            files += [f"--{skin}-root-cert", self.cert("ca")]
        return [f"--{skin}-{kind}", *files]

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert("server"), self.key("server"))
        return context

    def client_context(self, name: str = "") -> ssl.SSLContext:
        """That trusts `ca`, and shows the certificate of that name."""
        context = ssl.create_default_context(cafile=self.cert("ca"))
        if name:
            context.load_cert_chain(self.cert(name), self.key(name))
        return context


def made(directory: Path) -> Certificates:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    out = Certificates(directory)

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("ca", "stranger"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        run("req", "-x509", *new, "-days", "2", "-subj", f"/CN={name}", *files)
    for name in ("server", "client"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
        run("req", *new, "-subj", f"/CN={name}", *names, *files)
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        files = ("-in", f"{name}.csr", "-out", f"{name}.pem")
        run("x509", "-req", *signer, "-copy_extensions", "copy", *files)
    return out
