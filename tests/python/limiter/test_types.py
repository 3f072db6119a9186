"""The findings of type checkers on uses of the public API."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path

import jedi
import pytest
import tidegate as tg
from mypy import api
from tidegate.rules import RuleFile


def test_a_typed_service_is_accepted(tmp_path: Path) -> None:
    # An ignored error that is none is one.
    said, failed, status = api.run(
        [
            "--strict",
            "--config-file=",
            f"--cache-dir={tmp_path}",
            str(Path(__file__).with_name("typed_service.py")),
        ]
    )
    assert (status, failed) == (0, ""), said


CALLABLE = sorted(
    name
    for name in tg.__all__
    if callable(getattr(tg, name))
    and not (isinstance(getattr(tg, name), type) and issubclass(getattr(tg, name), Exception))
)


@pytest.mark.parametrize("name", CALLABLE)
def test_an_editor_shows_the_arguments_of_each_public_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An editor reads the package's files; the finder of an editable installation hides them.
    finders = [each for each in sys.meta_path if "ScikitBuild" not in type(each).__name__]
    monkeypatch.setattr(sys, "meta_path", finders)
    where = os.path.dirname(os.path.dirname(os.path.abspath(tg.__file__)))
    script = jedi.Script(
        f"import tidegate\ntidegate.{name}(",
        environment=jedi.InterpreterEnvironment(),
        project=jedi.Project(where, sys_path=[where, *sys.path]),
    )
    shown = script.get_signatures()
    assert shown, "jedi finds no arguments"
    assert all("*args" not in each.to_string() for each in shown)


def test_the_signature_of_a_limiter_has_its_arguments() -> None:
    of_limiter = inspect.signature(tg.Limiter).parameters
    of_rules = inspect.signature(tg.RuleLimiter).parameters
    assert {"limit", "rules", "storage", "algorithm", "prefix", "clock"} <= set(of_limiter)
    assert set(of_rules) <= set(of_limiter)


def test_each_limiter_is_of_its_public_class(tmp_path: Path) -> None:
    document = tmp_path / "rules.json"
    document.write_text('{"rules": [{"id": "a", "by": "user", "limit": "1/minute"}]}')
    rules = tg.RuleSet.load(document)
    with RuleFile(document) as source:
        for given in ({"rules": rules}, {"limit": rules}, {"rules": source}, {"limit": source}):
            limiter: tg.BaseLimiter = tg.Limiter(**given)
            assert type(limiter) is tg.RuleLimiter
            limiter.close()
    assert type(tg.Limiter("1/minute")) is tg.Limiter
    assert issubclass(tg.Limiter, tg.BaseLimiter)
    assert issubclass(tg.RuleLimiter, tg.BaseLimiter)
