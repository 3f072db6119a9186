"""The limits of Envoy's rate limit service, from files that may change while in force."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from tidegate.rules.document import read_file
from tidegate.rules.file import FileWatch, stamp_of
from tidegate.rules.problems import RulesError, problem_at
from tidegate.rules.source import RefusedError, Source
from tidegate.server.envoy_descriptors import Descriptors

if TYPE_CHECKING:
    import os
    import threading

    from tidegate.server._native import EnvoyService

__all__ = ["DescriptorFiles", "follow"]

log = logging.getLogger("tidegate")

_SUFFIXES = (".yaml", ".yml")
_MOST_FILES = 10_000


class DescriptorFiles(Source[Descriptors]):
    """The descriptors of a file, or of all .yaml and .yml files of a folder: a domain in each.

    With `merge_domains`, several files may have one domain; with `quota_mode`, all limits are in
    quota mode.

        source = DescriptorFiles("/etc/tidegate/envoy")
        follow(source, service)

    The path is checked every `interval` seconds. A new version is read once it has not changed for
    one interval. An invalid version is logged and counted (`refused`), and the previous version
    stays in force. Folders, and files whose names begin with a dot, are ignored; links are
    followed, since Kubernetes mounts ConfigMaps as links. The constructor raises RulesError for
    invalid descriptors, and OSError for files that cannot be read.
    """

    _what = "descriptors"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        interval: float = 0.5,
        merge_domains: bool = False,
        quota_mode: bool = False,
    ) -> None:
        self._path = Path(path)
        self._merge_domains = merge_domains
        self._quota_mode = quota_mode
        self._watch = FileWatch(self._stamp, interval)
        super().__init__(interval=interval)

    def _files(self) -> list[Path]:
        if not self._path.is_dir():
            return [self._path]
        files = sorted(
            path
            for path in self._path.iterdir()
            if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".") and path.is_file()
        )
        if not files:
            raise problem_at(
                str(self._path), None, "the folder has no file; expected .yaml or .yml files"
            )
        if len(files) > _MOST_FILES:
            raise problem_at(
                str(self._path), None, f"has {len(files)} files; expected at most {_MOST_FILES}"
            )
        return files

    def _stamp(self) -> Any:
        try:
            return [(path.name, *stamp_of(path)) for path in self._files()]
        except ValueError as error:  # a folder without files
            return str(error)

    def _next(self) -> Descriptors | None:
        if self._watch.look() is None:
            return None
        try:
            # Envoy reads all values as texts, including `007` and `yes`, but in metadata.
            documents = [
                read_file(path, keep_texts=True, typed="metadata") for path in self._files()
            ]
            descriptors = Descriptors(
                documents, merge_domains=self._merge_domains, quota_mode=self._quota_mode
            )
        except RulesError as error:
            raise RefusedError(error) from error
        except BaseException:
            self._watch.look_again()
            raise
        for note in descriptors.notes:
            log.warning("%s", note)
        return descriptors

    def _wait(self, stop: threading.Event) -> None:
        self._watch.wait(stop, self._has_users)

    def __repr__(self) -> str:
        return f"DescriptorFiles({str(self._path)!r})"


def follow(source: DescriptorFiles, service: EnvoyService) -> Callable[[], None]:
    """Makes `service` decide by `source`, now and after changes. Returns a function that ends this.

    Raises ValueError if the service's storage does not support a limit; later versions with such a
    limit are refused.
    """
    service.use(source.current.tree)
    return source.subscribe(lambda descriptors: service.use(descriptors.tree))
