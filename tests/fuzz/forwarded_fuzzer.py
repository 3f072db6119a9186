"""For any forwarding header the laws of tests/forwarding_laws.py hold, and nothing is raised.

    python tests/fuzz/forwarded_fuzzer.py FOLDER... -max_total_time=60

The parser is written in Python, so Atheris guides libFuzzer through it.
"""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

with atheris.instrument_imports(include=["tidegate.keys", "tidegate.web.addresses"]):
    import forwarding_laws


def check(data: bytes) -> None:
    forwarding_laws.check(data.decode("latin-1"))


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
