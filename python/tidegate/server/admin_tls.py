"""The certificate of the admin port, which may be replaced while the port answers."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.server.settings import Tls

__all__ = ["Certificate"]


class Certificate:
    """The certificate that `tls` names. A listener keeps `context` for as long as it listens.

    Raises ConfigurationError for files that cannot be used.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._newest = _context(tls)
        self.context = _context(tls)
        # TLS calls this in each handshake, whether or not the client names a server.
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Reads the files again, for new connections.

        If they cannot be used, the certificate stays, and ConfigurationError is raised.
        """
        self._newest = _context(self._tls)

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    is_1_3 = tls.minimum == "1.3"
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if is_1_3 else ssl.TLSVersion.TLSv1_2
    try:
        context.set_ciphers(tls.ciphers)
    except ssl.SSLError:
        raise ConfigurationError(
            f"admin.tls.ciphers is {tls.ciphers!r:.200}; expected names that OpenSSL knows, such "
            "as 'ECDHE+AESGCM'"
        ) from None
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"admin.tls has {tls.certificate}, {tls.key}"
            + (f" and {tls.client_ca}" if tls.client_ca else "")
            + f", which cannot be read: {error}; expected files in PEM"
        ) from None
    return context
