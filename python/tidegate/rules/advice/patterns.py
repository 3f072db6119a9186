"""What patterns of endpoints have in common."""

from __future__ import annotations

__all__ = ["canonical", "counted_as", "covers", "may_share"]


def canonical(endpoint: str) -> str:
    """The endpoint without repeated and trailing slashes, as it is counted."""
    return "/" + "/".join(_parts(endpoint)) if endpoint.startswith("/") else endpoint


def counted_as(pattern: str, endpoint: str) -> str:
    """By what a rule by endpoint counts an endpoint that its pattern covers."""
    parts = _parts(endpoint)
    names = [part if part.startswith("{") else None for part in _parts(pattern)]
    if not any(names):
        return canonical(endpoint)
    return "/" + "/".join(name or part for name, part in zip([*names, *[None] * len(parts)], parts))


def covers(pattern: str | None, other: str | None) -> bool:
    """Whether each endpoint of `other` is one of `pattern`; None is every request."""
    if pattern is None or pattern == other:
        return True
    if other is None:
        return pattern == "**"
    if pattern == "**":
        return True
    if not (pattern.startswith("/") and other.startswith("/")):
        return False
    outer, inner = _parts(pattern), _parts(other)
    if outer[-1:] == ["**"]:
        outer = outer[:-1]
        inner = inner[: len(outer)] if len(inner) >= len(outer) else [""] * 99
    return len(outer) == len(inner) and all(
        (_is_any(a) and b != "**") or a == b for a, b in zip(outer, inner)
    )


def may_share(pattern: str, other: str) -> bool:
    """Whether some endpoint is one of both patterns."""
    if "**" in (pattern, other) or pattern == other:
        return True
    if not (pattern.startswith("/") and other.startswith("/")):
        return False
    some, others = _parts(pattern), _parts(other)
    for a, b in zip(some, others):
        if "**" in (a, b):
            return True
        if a != b and not (_is_any(a) or _is_any(b)):
            return False
    rest = some[len(others) :] or others[len(some) :]
    return not rest or rest == ["**"]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _is_any(part: str) -> bool:
    return part == "*" or (part.startswith("{") and part.endswith("}"))
