"""The scopes of decorated functions, which are parts of keys that outlive the process."""

from __future__ import annotations

from tidegate.web.shared_counters import unique_scope


def test_scopes_of_functions_with_one_name_are_numbered_from_2() -> None:
    def view() -> None: ...

    name = f"{__name__}.{view.__qualname__}"
    assert [unique_scope(view) for _ in range(3)] == [name, f"{name}#2", f"{name}#3"]
