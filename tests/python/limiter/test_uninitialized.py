"""Objects whose __init__ did not run, and pickles: each call ends in an exception, not in the end
of the process. The tries are made in child processes, which would be what ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = ["tidegate._core", "tidegate.tuning._logs", "tidegate.server._native"]

TRY_METHODS = """
import faulthandler, importlib, inspect, sys
faulthandler.enable()
module = importlib.import_module(sys.argv[1])
classes = [each for each in vars(module).values() if isinstance(each, type)]
tries = 0
for each in classes:
    for name in dir(each):
        if name in ("__init__", "__new__", "__class__", "__init_subclass__", "__subclasshook__"):
            continue
        for arguments in ((), ("k",), ("k", 1), (1,), (1, 2, 3), (None,) * 4, ("k", 1, 0, None)):
            try:
                empty = each.__new__(each)
            except TypeError:
                break  # a class that cannot be made from Python
            tries += 1
            print(each.__name__, name, arguments, flush=True)
            try:
                value = getattr(empty, name)
                if callable(value):
                    value(*arguments)
            except Exception as error:
                assert str(error) or isinstance(error, (AssertionError, KeyError)), repr(error)
    try:
        empty = each.__new__(each)
    except TypeError:
        continue
    for function in [each for each in vars(module).values() if inspect.isroutine(each)]:
        for rest in ((), ("k",), ("k", 1), (0, "k"), (0, "k", 1, None, 0)):
            tries += 1
            print(each.__name__, function.__name__, rest, flush=True)
            try:
                function(empty, *rest)
            except Exception:
                pass
assert len(classes) >= int(sys.argv[2]) and tries > 50 * len(classes), (len(classes), tries)
print("survived")
"""

TRY_PICKLES = """
import copy, faulthandler, importlib, pickle, sys
faulthandler.enable()
module = importlib.import_module(sys.argv[1])

def refuses(make, what):
    print(what, flush=True)
    try:
        made = make()
    except (TypeError, pickle.PicklingError) as error:
        return str(error)
    except Exception as error:
        return repr(error)
    return made

for each in [each for each in vars(module).values() if isinstance(each, type)]:
    try:
        empty = each.__new__(each)
    except TypeError:
        continue
    for protocol in range(6):
        refuses(lambda: pickle.dumps(empty, protocol), (each, protocol))
        refuses(lambda: empty.__reduce_ex__(protocol), (each, protocol))
    for take in (copy.copy, copy.deepcopy, lambda empty: empty.__reduce__()):
        refuses(lambda: take(empty), (each, take))
print("survived")
"""


def run(script: str, *arguments: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120
    )
    last = child.stdout.splitlines()[-1:]
    assert (child.returncode, last) == (0, ["survived"]), child.stdout[-300:] + child.stderr[-3000:]


@pytest.mark.parametrize(("module", "classes"), list(zip(MODULES, (17, 1, 8))))
def test_no_method_of_an_uninitialized_object_ends_the_process(module: str, classes: int) -> None:
    if module.endswith("_native"):
        pytest.importorskip(module, reason="the native service is for Linux")
    run(TRY_METHODS, module, str(classes))


@pytest.mark.parametrize("module", MODULES)
def test_no_pickle_of_an_uninitialized_object_ends_the_process(module: str) -> None:
    if module.endswith("_native"):
        pytest.importorskip(module, reason="the native service is for Linux")
    run(TRY_PICKLES, module)


PICKLES = """
import copy, pickle
import tidegate as tg

class Own(tg.Limiter):
    pass

made = [
    tg.Limiter("1/second"),
    Own("1/second"),
    tg.Limiter("1/second").storage,
    tg.Limiter(tg.Limit("1/second", algorithm="concurrency")).slot("k"),
    tg.ManualClock(),
    tg.Limiter(rules=tg.RuleSet({"rules": [{"id": "r", "by": "ip", "limit": "1/second"}]})),
]
for each in made:
    takes = [lambda each, p=p: pickle.dumps(each, p) for p in range(6)]
    for take in [*takes, copy.copy, copy.deepcopy, lambda each: each.__reduce__()]:
        if type(each).__name__ == "Slot" and take not in takes:
            continue
        print(each, flush=True)
        try:
            take(each)
        except TypeError as error:
            assert "cannot be pickled or copied" in str(error), error
            assert "expected one that is made where it is used" in str(error), error
        else:
            raise AssertionError(each)
limit = tg.Limit("5/minute burst 7", algorithm="leaky-bucket")
decision = tg.Limiter(limit).hit("k")
for protocol in range(6):
    assert pickle.loads(pickle.dumps(limit, protocol)) == limit
    assert pickle.loads(pickle.dumps(decision, protocol)).remaining == decision.remaining
assert copy.deepcopy(limit) == limit
print("survived")
"""


def test_what_belongs_to_a_process_says_how_to_share_it_instead() -> None:
    run(PICKLES)
