"""Methods that a class does not have, and that callers look for there."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Absent", "is_absent"]


class Absent:
    """In place of a method: an AttributeError that says what to call.

    Unlike __getattr__() it makes no other attribute slower. hasattr() returns False for it.
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name = name
        self._advice = advice

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(f"a {owner.__name__} has no {self._name}(); {self._advice}")


def is_absent(owner: type, name: str) -> bool:
    """Whether `name` is one of these methods in `owner`."""
    return any(isinstance(vars(base).get(name), Absent) for base in owner.__mro__)
