"""JSON for files in the repository: indented, and a list of plain values on one line."""

from __future__ import annotations

import json
import re
from typing import Any

_PLAIN_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")


def json_text(value: Any) -> str:
    """The text of a file with `value`, which holds no strings with brackets over several lines."""
    text = json.dumps(value, indent=1)
    joined = _PLAIN_LIST.sub(lambda found: "[" + re.sub(r"\n\s*", " ", found[1]) + "]", text)
    return joined + "\n"
