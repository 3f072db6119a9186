"""Follows the files of certificates, which others renew while the service runs."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Callable

from tidegate.rules.file import FileWatch, stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tidegate.server.settings import Tls

__all__ = ["CertificateWatch", "files_of"]

log = logging.getLogger("tidegate")


def files_of(tls: Tls | None) -> list[Path]:
    """The files that `tls` names."""
    if tls is None:
        return []
    return [path for path in (tls.certificate, tls.key, tls.client_ca) if path is not None]


class CertificateWatch:
    """Calls `reload` on a thread of its own after one of `files` has changed.

    The files are checked every `interval` seconds, and read once they stay the same: a certificate
    and its key are written one after the other. Links are followed, as Kubernetes makes them.
    """

    def __init__(
        self, files: Iterable[Path], reload: Callable[[], object], interval: float = 1.0
    ) -> None:
        self._files = list(files)
        self._reload = reload
        self._watch = FileWatch(self._stamp, interval)
        self._watch.look()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, name="tidegate certificates", daemon=True
        )
        self._thread.start()

    def _stamp(self) -> list[Any]:
        stamps: list[Any] = []
        for path in self._files:
            try:
                stamps.append(stamp_of(path))
            except OSError:  # it is being replaced
                stamps.append(None)
        return stamps

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._watch.wait(self._stop)
            if not self._stop.is_set() and self._watch.look() is not None:
                log.info("a certificate has changed")
                self._reload()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()
