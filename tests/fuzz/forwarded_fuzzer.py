"""Whatever a forwarding header says: tests/forwarding_laws.py holds, and nothing is raised.

    python tests/fuzz/forwarded_fuzzer.py FOLDER... -max_total_time=60

The parser is Python, so that it is libFuzzer by way of Atheris that is guided through it.
"""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

with atheris.instrument_imports(include=["tidegate.keys", "tidegate._web.addresses"]):
    import forwarding_laws


def check(data: bytes) -> None:
    forwarding_laws.check(data.decode("latin-1"))


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
