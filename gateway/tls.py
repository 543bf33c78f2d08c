"""TLS of both skins from PEM files, with Triton's options. Never logs what is in them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NoReturn

from naiad.config.listening import ListenFailed

Skin = Literal["http", "grpc"]

ALPN: Final[dict[Skin, str]] = {"http": "http/1.1", "grpc": "h2"}
NAMES: Final[dict[Skin, str]] = {"http": "HTTP", "grpc": "gRPC"}
OLDEST: Final = ssl.TLSVersion.TLSv1_2
"""As HTTP/2 demands, and as is good for HTTP/1.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What the options `--SKIN-use-ssl` and so on say of one skin."""

    skin: Skin
    use_ssl: bool = False
    use_ssl_mutual: bool = False
    server_cert: str | None = None
    server_key: str | None = None
    root_cert: str | None = None

    @property
    def is_wanted(self) -> bool:
        return self.use_ssl or self.use_ssl_mutual

    def context(self) -> ssl.SSLContext | None:
        """What to listen with, None without TLS; mutual: clients show a certificate too.

        Raises ListenFailed when a file is missing, not given, not what it should be, or given
        without TLS.
        """
        if not self.is_wanted:
            if self.server_cert or self.server_key or self.root_cert:
                raise ListenFailed(
                    f"a certificate or key for {NAMES[self.skin]} is given, but not used; add"
                    f" --{self.skin}-use-ssl"
                )
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = OLDEST
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols([ALPN[self.skin]])
        self._load_own(context)
        if self.use_ssl_mutual or self.root_cert:
            self._load_signers(context)
        if self.use_ssl_mutual:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        chain = self._existing("server-cert", self.server_cert)
        key = self._existing("server-key", self.server_key)

        def no_password() -> NoReturn:
            raise ListenFailed(
                f"{self._option('server-key')} {key} is encrypted, and nobody is there to ask for"
                " its password; give a key without one"
            )

        try:
            context.load_cert_chain(chain, key, no_password)
        except ssl.SSLError as fault:
            raise ListenFailed(
                f"{self._option('server-cert')} {chain} and {self._option('server-key')} {key}"
                f" cannot be used together: {_reason(fault)}"
            ) from fault

    def _load_signers(self, context: ssl.SSLContext) -> None:
        signers = self._existing("root-cert", self.root_cert)
        try:
            context.load_verify_locations(signers)
        except ssl.SSLError as fault:
            raise ListenFailed(
                f"{self._option('root-cert')} {signers}: {_reason(fault)}"
            ) from fault

    def _existing(self, name: str, path: str | None) -> str:
        option = self._option(name)
        if not path:
            raise ListenFailed(f"TLS for {NAMES[self.skin]} needs a PEM file; give {option}")
        try:
            with Path(path).open("rb"):
                return path
        except OSError as fault:
            raise ListenFailed(f"{option} {path}: {fault.strerror}") from fault

    def _option(self, name: str) -> str:
        return f"--{self.skin}-{name}"


def _reason(fault: ssl.SSLError) -> str:
    """OpenSSL's word for it; a file without any certificate or key has none."""
    return fault.reason or "no certificate, or no key, is in it"
