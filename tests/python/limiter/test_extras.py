"""What a module says whose extra is not installed: the table of docs/howto/install.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "howto" / "install.md").read_text(encoding="utf-8")
ROWS = {
    extra: said.strip("` ")
    for extra, said in re.findall(r"^\| `(\w+)` \| .* \| (.*) ?\|$", PAGE, re.MULTILINE)
}
DATABASE = "postgresql+psycopg://db/rules"
# For each extra the packages that are not there, and what then fails.
USES = {
    "fastapi": (["fastapi"], "import tidegate.fastapi"),
    "flask": (["flask"], "import tidegate.flask"),
    "django": (["django"], "import tidegate.django"),
    "rules": (["pydantic"], "import tidegate.rules"),
    "sql": (["sqlalchemy"], "import tidegate.rules.sql"),
    "postgres": (["psycopg"], f"from tidegate.rules.sql import *; read_rules({DATABASE!r})"),
    "jwt": (["jwt"], "from tidegate import keys; keys.jwt_claim(key='s', algorithms=['HS256'])"),
    "load": (["psutil"], "import tidegate.load; tidegate.load.SystemLoad()"),
    "httpx": (["httpx"], "import tidegate.httpx"),
    "requests": (["requests"], "import tidegate.requests"),
    "prometheus": (["prometheus_client"], "import tidegate.prometheus"),
    "opentelemetry": (["opentelemetry"], "import tidegate.opentelemetry"),
    "limits": (["limits"], "import tidegate.limits"),
    "notebook": (["numpy"], "import tidegate.tuning"),
    "server": (["pydantic_settings"], "from tidegate.cli.main import main; main(['serve'])"),
    "demo": (["fastapi", "uvicorn"], "from tidegate.cli.main import main; main(['demo'])"),
}


def said_without(packages: list[str], statement: str) -> str:
    """The last line of a program's error where these packages are not installed."""
    program = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {packages!r} else found(name, *rest)
{statement}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    return done.stderr.strip().splitlines()[-1]


def test_the_table_has_all_extras() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = re.findall(r"^\[project.optional-dependencies\]\n(.*?)\n\n", project, re.M | re.S)[0]
    assert ROWS.keys() == {*re.findall(r"^(\w+) = ", section, re.MULTILINE)}
    assert ROWS.keys() - USES.keys() == {"redis", "all"}


@pytest.mark.parametrize("extra", USES)
def test_a_module_without_its_extra_says_which_one(extra: str) -> None:
    packages, statement = USES[extra]
    said = said_without(packages, statement)
    assert ROWS[extra] in said
    assert f"pip install 'tidegate[{extra}]'" in said


def test_a_picture_names_the_extra_of_its_library() -> None:
    statement = "from tidegate.tuning import plots; plots.hours([1])"
    assert "'tidegate[notebook]'" in said_without(["matplotlib"], statement)
