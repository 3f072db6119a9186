"""Random documents of rules, and random requests, for the oracle of rules."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

from tidegate.rules import RulesError, RuleSet

Document = dict[str, Any]
Request = dict[str, Any]

TIERS = ["free", "gold", "team"]
PRIORITIES = ["critical", "normal", "background"]
_SEGMENTS = ["a", "b", "c"]
_PERIODS = ["minute", "hour"]
_BEGIN = datetime(1970, 1, 1, tzinfo=timezone.utc)


def chosen(rng: random.Random, share: float) -> bool:
    return rng.random() < share


def some_pattern(rng: random.Random) -> str:
    if chosen(rng, 0.1):
        return rng.choice(["**", "report", "/"])
    parts = [rng.choice([*_SEGMENTS, "*", "{x}"]) for _ in range(rng.randint(1, 3))]
    return "/" + "/".join(parts) + ("/**" if chosen(rng, 0.25) else "")


def some_limit(rng: random.Random, count: int | None = None) -> str:
    count = rng.choice([1, 2, 3, 5, 10, 20]) if count is None else count
    return f"{count}/{rng.choice(_PERIODS)}"


def some_limits(rng: random.Random) -> Any:
    """A limit, two of different periods, none, or these by tier."""

    def of_one() -> Any:
        if chosen(rng, 0.1):
            return "unlimited"
        if chosen(rng, 0.2):
            return [f"{rng.randint(1, 5)}/minute", f"{rng.randint(2, 9)}/hour"]
        return some_limit(rng)

    if chosen(rng, 0.35):
        tiers = rng.sample(TIERS, rng.randint(1, 3))
        return {
            **{tier: of_one() for tier in tiers},
            **({"*": of_one()} if chosen(rng, 0.5) else {}),
        }
    return of_one()


def some_conditions(rng: random.Random, *, of_list: bool = False) -> Document:
    fields: Document = {}
    if chosen(rng, 0.5):
        fields["endpoints"] = [some_pattern(rng) for _ in range(rng.randint(1, 2))]
    if chosen(rng, 0.3):
        fields["methods"] = rng.sample(["GET", "HEAD", "post", "PUT"], rng.randint(1, 2))
    if chosen(rng, 0.2):
        fields["tiers"] = rng.sample(TIERS, rng.randint(1, 2))
    if chosen(rng, 0.2):
        networks = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "2001:db8::/32", "::/0", "0.0.0.0/0"]
        fields["networks"] = rng.sample(networks, rng.randint(1, 2))
    when = {name: rng.choice(["x", "y"]) for name in ("app", "region") if chosen(rng, 0.15)}
    if of_list:
        fields.update(when)
    elif when:
        fields["when"] = when
    return fields


def some_times(rng: random.Random) -> Document:
    """Within two hours or two months, as instants of some zone or as days."""
    begin, end = sorted(rng.sample(range(rng.choice([120, 120, 80_000])), 2))
    fields: Document = {}
    for name, minutes in (("from", begin), ("until", end)):
        if not chosen(rng, 0.5):
            continue
        at = _BEGIN + timedelta(minutes=minutes)
        if minutes > 120 and chosen(rng, 0.2):
            fields[name] = f"{at:%Y-%m-%d}"
        elif chosen(rng, 0.2):
            zone = timezone(timedelta(hours=rng.choice([-8, 2])))
            fields[name] = at.astimezone(zone).isoformat()
        else:
            fields[name] = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    return fields


def some_rule(rng: random.Random, id: str) -> Document:
    rule: Document = {
        "id": id,
        "by": rng.choice(
            ["user", "ip", "global", "user+endpoint", "endpoint+user", "tenant", "method+ip"]
        ),
        **some_conditions(rng),
    }
    if chosen(rng, 0.15):
        rule["limits"] = f"quota {rng.randint(3, 12)}/month"
    elif chosen(rng, 0.2):
        # What is left of a bucket depends on one limit alone, so that its rule has just one.
        rule.update(limits=some_limit(rng), algorithm="token-bucket")
    elif chosen(rng, 0.15):
        rule["limits"] = some_limit(rng, rng.choice([10, 20]))
        rule["reserve"] = rng.choice(
            ["20%", {"background": "50%"}, {"normal": "10%", "background": "60%"}]
        )
    else:
        rule["limits"] = some_limits(rng)
    for field, value, share in (
        ("counts", "requests", 0.15),
        ("shadow", True, 0.12),
        ("also", True, 0.12),
        ("enabled", False, 0.05),
        ("counter", "shared", 0.1),
    ):
        if chosen(rng, share):
            rule[field] = value
    if chosen(rng, 0.25):
        rule["replaces"] = [f"r{rng.randint(0, 5)}"]
    return rule


def parts_of(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def some_path(rng: random.Random, patterns: list[str]) -> str:
    """Often one that a pattern is for."""
    pattern = rng.choice(patterns) if patterns and chosen(rng, 0.7) else "/*/*"
    parts = ["/".join("*" * rng.randint(0, 2)) if p == "**" else p for p in parts_of(pattern)]
    filled = "/".join(parts).split("/")
    return "/" + "/".join(rng.choice([*_SEGMENTS, "d"]) if p[0] in "*{" else p for p in filled if p)


def some_request(rng: random.Random, patterns: list[str]) -> Request:
    request: Request = {"cost": rng.choice([1, 1, 1, 2, 3])}
    if chosen(rng, 0.9):
        path = some_path(rng, patterns)
        others = [path + "/", "/" + path, "report", "/"]
        request["endpoint"] = path if chosen(rng, 0.8) else rng.choice(others)
    for name, values, share in (
        ("method", ["GET", "POST", "head", "HEAD", "put", "DELETE"], 0.85),
        ("user", ["1", "2"], 0.75),
        ("tenant", ["t"], 0.5),
        ("tier", [*TIERS, "unknown"], 0.6),
        ("app", ["x", "y"], 0.4),
        ("region", ["x", "y"], 0.4),
        ("priority", [*PRIORITIES, "urgent"], 0.15),
        (
            "ip",
            ["10.1.2.3", "10.1.9.9", "10.9.9.9", "192.0.2.1", "2001:db8::1", "2001:db8::2",
             "2001:db9::1", "64:ff9b::a01:203", "no address"],
            0.75,
        ),
    ):  # fmt: skip
        if chosen(rng, share):
            request[name] = rng.choice(values)
    return request


def some_document(rng: random.Random) -> tuple[Document, RuleSet]:
    """As many random parts as are accepted together."""
    document: Document = {"algorithm": "fixed-window", "rules": []}
    if chosen(rng, 0.5):
        document.update(tiers=TIERS)
    if chosen(rng, 0.5):
        document.update(default_tier=rng.choice(TIERS))
        document.setdefault("tiers", TIERS)
    accepted: RuleSet | None = None

    def offer(section: str, item: Document) -> None:
        nonlocal document, accepted
        offered = {**document, section: [*document.get(section, []), item]}
        try:
            accepted = RuleSet(offered)
        except RulesError:
            return
        document = offered

    for i in range(rng.randint(2, 7)):
        offer("rules", some_rule(rng, f"r{i}"))
    for _ in range(rng.randint(0, 3)):
        entry: Document = some_conditions(rng)
        if chosen(rng, 0.7):
            entry["cost"] = rng.randint(1, 3)
        if chosen(rng, 0.4) or "cost" not in entry:
            entry["priority"] = rng.choice(PRIORITIES)
        offer("costs", entry)
    for section in ("allow", "block"):
        for i in range(rng.choice([0, 0, 1, 2])):
            entry = {"id": f"{section}{i}", **some_conditions(rng, of_list=True)}
            if chosen(rng, 0.4):
                entry["user"] = rng.choice(["1", "2"])
            offer(section, {**entry, **some_times(rng)})
    for _ in range(rng.choice([0, 0, 1, 3])):
        rule = rng.choice(document["rules"] or [{"by": "global", "id": ""}])
        values = {
            "user": rng.choice(["1", "2"]),
            "ip": rng.choice(["10.1.2.3", "2001:db8::1"]),
            "tenant": "t",
            "method": rng.choice(["GET", "head", "put"]),
            "endpoint": rng.choice(["/a", "/a/b", "/a/{x}", "/b"]),
        }
        names = rule["by"].split("+")
        if names == ["global"] or rule.get("algorithm") or "quota" in repr(rule["limits"]):
            continue
        key = values[names[0]] if len(names) == 1 else {name: values[name] for name in names}
        limits = "unlimited" if chosen(rng, 0.1) else some_limit(rng)
        offer("overrides", {"rule": rule["id"], "key": key, "limits": limits, **some_times(rng)})
    if chosen(rng, 0.5):
        default = {"by": rng.choice(["user", "ip", "global"]), "limits": some_limit(rng)}
        try:
            accepted = RuleSet({**document, "default": default})
            document["default"] = default
        except RulesError:
            pass
    return document, accepted if accepted is not None else RuleSet(document)
