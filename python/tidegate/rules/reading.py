"""Reads a version of the rules: in this process, or in one that exists only for that.

Thousands of rules take Python seconds, and so many objects that one run of the garbage collector
stops all threads for a tenth of a second. In a process of its own that takes no time of a request:
what comes back is bytes, which the core compiles without the GIL.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tidegate import _core
from tidegate.rules import pauses
from tidegate.rules.problems import RulesError
from tidegate.rules.rule_set import RuleSet

if TYPE_CHECKING:
    import threading

    from tidegate.rules.document import Document

    Read = Callable[[], Document]

__all__ = [
    "CannotReadApart",
    "ClosedMeanwhile",
    "ReaderWasKilled",
    "Version",
    "main",
    "read_apart",
    "read_here",
]

# `-I`: what instruments the service by its environment is not for this process. The service's path
# is set before anything is imported by it.
_COMMAND = ("-I", "-c")
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from tidegate.rules.reading import main; main()"
# How soon the wait for the process sees that the source was closed.
_SLICE_S = 0.1
# A process that takes longer is given up.
_LONGEST_S = 120.0


class Version(NamedTuple):
    """The result of reading a document."""

    rules: Any
    """The RuleSet; None where it was refused."""
    refusal: Exception | None = None
    """Why it was refused."""
    text: str | None = None
    """The document as JSON, if that was asked for."""


class CannotReadApart(Exception):
    """There was no process, or it failed otherwise than at the rules."""


class ReaderWasKilled(CannotReadApart):
    """There was a process, and a signal ended it, as one may where memory is short."""


class ClosedMeanwhile(Exception):
    """The source was closed while the process was reading."""


def read_here(read: Read, *, keeps_text: bool) -> Version:
    """Calls `read` and compiles its document. Raises what `read` does, but for RulesError."""
    version = _version(read, RuleSet._from, keeps_text)
    if version.rules is not None:
        version.rules._pickle()
    return version


def read_apart(read: Read, *, keeps_text: bool, stop: threading.Event) -> Version:
    """Like read_here(), in a process of its own, to which `read` is pickled.

    Raises CannotReadApart, such as ReaderWasKilled; and, once `stop` is set, ClosedMeanwhile.
    """
    try:
        asked = pickle.dumps(_core.__version__) + pickle.dumps((read, keeps_text))
        answer = _answer(asked, stop)
        found = pickle.loads(answer)
    except (ClosedMeanwhile, ReaderWasKilled):
        raise
    except Exception as error:
        raise CannotReadApart(str(error)) from error
    if isinstance(found, Exception):
        raise found
    version: Version = found
    if version.rules is None:
        return version
    try:
        return version._replace(rules=RuleSet._unpacked(version.rules))
    except ValueError as error:
        raise CannotReadApart(str(error)) from error


def _version(read: Read, make: Callable[[Document], Any], keeps_text: bool) -> Version:
    try:
        document = read()
    except RulesError as error:
        return Version(None, error)
    try:
        rules = make(document)
    except Exception as error:
        return Version(None, error)
    return Version(rules, None, json.dumps(document.data, default=str) if keeps_text else None)


def _answer(asked: bytes, stop: threading.Event) -> bytes:
    """Returns the answer of the process. Raises an error with the reason if there is none."""
    with subprocess.Popen(
        [_interpreter(), *_COMMAND, _PROGRAM, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # The process must not read what is typed at the terminal of the service.
        start_new_session=True,
    ) as process:
        given: bytes | None = asked
        try:
            for _ in range(int(_LONGEST_S / _SLICE_S)):
                try:
                    answer, errors = process.communicate(given, _SLICE_S)
                    break
                except subprocess.TimeoutExpired:
                    given = None  # it is sent once
                    if stop.is_set():
                        raise ClosedMeanwhile from None
            else:
                raise TimeoutError(f"there was no answer in {_LONGEST_S} s")
        except BaseException:
            process.kill()
            raise
    if not answer:
        if process.returncode < 0:
            raise ReaderWasKilled(f"signal {-process.returncode} ended it")
        lines = errors.decode(errors="replace").strip().splitlines()
        raise RuntimeError(lines[-1] if lines else "there was no answer")
    return answer


def _interpreter() -> str:
    """The program of this interpreter. Raises where it is one that embeds Python."""
    program = sys.executable or ""
    if getattr(sys, "frozen", False) or not os.path.basename(program).startswith("python"):
        raise RuntimeError(f"the program {program!r} is not Python")
    return program


def main() -> None:
    """Runs in the process: answers one question of read_apart()."""
    # The output of an import or a database's driver must not be part of the answer.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        # The process ends before its garbage matters, and has no requests to let through.
        gc.disable()
        pauses.end()
        version = pickle.load(sys.stdin.buffer)
        if version != _core.__version__:
            raise SystemExit(f"tidegate {_core.__version__} is installed, {version} is running")
        read, keeps_text = pickle.load(sys.stdin.buffer)
        answer: Any
        try:
            answer = _version(read, RuleSet._packed, keeps_text)
        except Exception as error:
            answer = error
        output.write(pickle.dumps(answer))
    os._exit(0)  # to free all objects would take long
