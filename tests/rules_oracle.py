"""Random rules and requests, decided as docs/rules.md says, and held to what the limiter decides.

Written from that page alone, so that it shares no code with the package, and no reading of it.
`make oracle` runs it: it prints each difference, with the document and the requests before.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import logging
import random
import sys
from collections import defaultdict
from fractions import Fraction
from typing import Any

import tidegate as tg
from tidegate.rules import RulesError, RuleSet

Document = dict[str, Any]
Request = dict[str, Any]

PERIODS = {"minute": 60, "hour": 3600}
TIERS = ["free", "gold", "team"]
SEGMENTS = ["a", "b", "c"]
PRIORITIES = ["critical", "normal", "background"]


def chosen(rng: random.Random, share: float) -> bool:
    return rng.random() < share


# ------------------------------------------------------------------- what is asked, at random


def some_pattern(rng: random.Random) -> str:
    if chosen(rng, 0.1):
        return rng.choice(["**", "report", "/"])
    parts = [rng.choice([*SEGMENTS, "*", "{x}"]) for _ in range(rng.randint(1, 3))]
    return "/" + "/".join(parts) + ("/**" if chosen(rng, 0.25) else "")


def some_limit(rng: random.Random, count: int | None = None) -> str:
    count = rng.choice([1, 2, 3, 5, 10, 20]) if count is None else count
    return f"{count}/{rng.choice(list(PERIODS))}"


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
    begin, end = sorted(rng.sample(range(120), 2))
    fields: Document = {}
    for name, minutes in (("from", begin), ("until", end)):
        if chosen(rng, 0.5):
            fields[name] = f"1970-01-01T{minutes // 60:02}:{minutes % 60:02}:00Z"
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


def some_path(rng: random.Random, patterns: list[str]) -> str:
    """Often one that a pattern is for."""
    pattern = rng.choice(patterns) if patterns and chosen(rng, 0.7) else "/*/*"
    parts = ["/".join("*" * rng.randint(0, 2)) if p == "**" else p for p in parts_of(pattern)]
    filled = "/".join(parts).split("/")
    return "/" + "/".join(rng.choice([*SEGMENTS, "d"]) if is_any(p) else p for p in filled if p)


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
        names = names_of(rule)
        if not names or rule.get("algorithm") or "quota" in repr(rule["limits"]):
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


# ------------------------------------------------------------------- what the page says


def names_of(rule: Document) -> list[str]:
    by = rule.get("by", "global")
    return [] if by == "global" else by.split("+")


def parts_of(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def is_any(part: str) -> bool:
    return part == "*" or part.startswith("{")


def meets_endpoint(pattern: str, endpoint: str | None) -> bool:
    if pattern == "**":
        return True
    if endpoint is None:
        return False
    if not pattern.startswith("/") or not endpoint.startswith("/"):
        return pattern == endpoint
    wanted, given = parts_of(pattern), parts_of(endpoint)
    if wanted[-1:] == ["**"]:
        wanted = wanted[:-1]
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(is_any(w) or w == g for w, g in zip(wanted, given))


def of_endpoint(pattern: str | None) -> tuple[int, ...]:
    """How specific, part by part: a name, then `*`, then `**`; no endpoint last."""
    if pattern is None or pattern == "**":
        return ()
    if not pattern.startswith("/"):
        return (9,)
    # Where a pattern ends, one that goes on with `**` is less specific.
    return (*(1 if p == "**" else 2 if is_any(p) else 3 for p in parts_of(pattern)), 2)


Address = Any


def address_of(text: str | None) -> Address:
    try:
        found: Address = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    if found.version == 6 and found in ipaddress.ip_network("64:ff9b::/96"):
        return ipaddress.ip_address(int(found) & 0xFFFFFFFF)
    return found


def counted_ip(text: str) -> str:
    address = address_of(text)
    if address is None:
        return text
    if address.version == 6:
        return str(ipaddress.ip_network(f"{address}/64", strict=False))
    return str(address)


def in_force(entry: Document, now: Fraction) -> bool:
    return instant(entry.get("from"), Fraction(0)) <= now < instant(entry.get("until"), now + 1)


def instant(text: str | None, otherwise: Fraction) -> Fraction:
    if text is None:
        return otherwise
    return Fraction(int(text[11:13]) * 3600 + int(text[14:16]) * 60)


class Oracle:
    """Decides requests of one document, and counts."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.rules = [rule for rule in document["rules"] if rule.get("enabled", True)]
        self.tiers = document.get("tiers") or self.named_tiers()
        self.default_tier = document.get("default_tier")
        self.used: dict[Any, tuple[Fraction, Fraction]] = defaultdict(
            lambda: (Fraction(0), Fraction(-1))
        )
        self.ambiguous: list[str] = []

    def named_tiers(self) -> list[str]:
        sections = [self.rules, *(self.document.get(s, []) for s in ("costs", "allow", "block"))]
        named = {tier for section in sections for each in section for tier in each.get("tiers", [])}
        for rule in self.rules:
            if isinstance(rule["limits"], dict):
                named.update(rule["limits"])
        return sorted(named - {"*"})

    def tier_of(self, request: Request) -> str | None:
        given = request.get("tier")
        return given if given in self.tiers else self.default_tier

    def specificity(self, fields: Document, when: Document, request: Request) -> Any:
        """The most specific way in which the request meets the conditions; None if it does not."""
        tiers = fields.get("tiers")
        limits = fields.get("limits")
        if not tiers and isinstance(limits, dict) and "*" not in limits:
            tiers = list(limits)
        if tiers and self.tier_of(request) not in tiers:
            return None
        methods = [method.upper() for method in fields.get("methods", [])]
        method = request.get("method", "").upper()
        names_head = method == "HEAD" and "HEAD" in methods
        if methods and method not in methods and not (method == "HEAD" and "GET" in methods):
            return None
        if any(request.get(name) != value for name, value in when.items()):
            return None
        endpoints = [
            of_endpoint(pattern)
            for pattern in fields.get("endpoints") or [None]
            if pattern is None or meets_endpoint(pattern, request.get("endpoint"))
        ]
        address = address_of(request.get("ip"))
        networks = [-1] if not fields.get("networks") else []
        for text in fields.get("networks", []):
            network = ipaddress.ip_network(text)
            if address is not None and address.version == network.version and address in network:
                networks.append(network.prefixlen + (96 if network.version == 4 else 0))
        if not endpoints or not networks:
            return None
        return max(endpoints), len(when), max(networks), bool(tiers), bool(methods), names_head

    def most_specific(self, entries: list[Any], request: Request) -> list[Any]:
        """The entries that are equally specific, and more so than all others."""
        found = [
            (how, entry)
            for entry in entries
            if (how := self.specificity(entry, entry.get("when", {}), request)) is not None
        ]
        best = max((how for how, _ in found), default=None)
        return [entry for how, entry in found if how == best]

    def listed(self, request: Request, now: Fraction) -> tuple[str, bool] | None:
        fields = ("id", "endpoints", "methods", "tiers", "networks", "from", "until")
        entries = []
        for section in ("block", "allow"):
            for entry in self.document.get(section, []):
                if in_force(entry, now):
                    when = {name: value for name, value in entry.items() if name not in fields}
                    entries.append({**entry, "when": when, "allows": section == "allow"})
        best = self.most_specific(entries, request)
        return (best[0]["id"], best[0]["allows"]) if best else None

    def applying(self, request: Request) -> list[Document]:
        dimensions: dict[Any, list[Document]] = defaultdict(list)
        for rule in self.rules:
            if all(request.get(name) is not None for name in names_of(rule)):
                dimensions[self.dimension(rule)].append(rule)
        winners = []
        for rules in dimensions.values():
            best = self.most_specific(rules, request)
            if len(best) > 1:
                self.ambiguous.append(f"{[rule['id'] for rule in best]} are equally specific")
            winners += best[:1]
        by_id = {rule["id"]: rule for rule in self.document["rules"]}
        replaced = {
            id
            for rule in winners
            for id in rule.get("replaces", [])
            if by_id[id].get("shadow", False) == rule.get("shadow", False)
        }
        winners = [rule for rule in winners if rule["id"] not in replaced]
        default = self.document.get("default")
        if default and all(rule.get("shadow") or rule.get("also") for rule in winners):
            default = {"id": "default", **default}
            if all(request.get(name) is not None for name in names_of(default)):
                winners.append(default)
        return winners

    @staticmethod
    def dimension(rule: Document) -> Any:
        if rule.get("also"):
            return rule["id"]
        has_quota = "quota" in repr(rule["limits"])
        counts = rule.get("counts", "cost")
        return frozenset(names_of(rule)), counts, has_quota, rule.get("shadow", False)

    def key_of(self, rule: Document, request: Request) -> tuple[str, ...]:
        key = []
        for name in names_of(rule):
            value = request[name]
            if name == "ip":
                value = counted_ip(value)
            elif name == "method":
                value = value.upper()
            elif name == "endpoint":
                value = self.counted_endpoint(rule, value)
            key.append(value)
        return tuple(key)

    def counted_endpoint(self, rule: Document, endpoint: str) -> str:
        """What `{name}` stands for counts together, and what `*` and `**` stand for apart."""
        if not endpoint.startswith("/"):
            return endpoint
        given = parts_of(endpoint)
        met = [p for p in rule.get("endpoints", []) if meets_endpoint(p, endpoint)]
        pattern = max(met, key=of_endpoint, default="**")
        for i, part in enumerate(parts_of(pattern) if pattern != "**" else []):
            if part.startswith("{"):
                given[i] = part
        return "/" + "/".join(given)

    def cost_of(self, request: Request) -> tuple[int, str]:
        best = self.most_specific(self.document.get("costs", []), request)
        if len(best) > 1:
            self.ambiguous.append("costs are equally specific")
        entry = best[0] if best else {}
        priority = entry.get("priority", "normal")
        if request.get("priority") in PRIORITIES:
            priority = request["priority"]
        return request["cost"] * entry.get("cost", 1), priority

    def limits_of(self, rule: Document, key: Any, request: Request, now: Fraction) -> Any:
        """The limits of the rule for this key, and whether they are those of an override."""
        names = names_of(rule)
        found = []
        for i, override in enumerate(self.document.get("overrides", [])):
            if override["rule"] != rule["id"]:
                continue
            given = override["key"]
            values = [given] if isinstance(given, str) else [given[name] for name in names]
            values = [counted_ip(v) if n == "ip" else v for n, v in zip(names, values)]
            values = [v.upper() if n == "method" else v for n, v in zip(names, values)]
            if tuple(values) == key and in_force(override, now):
                end = instant(override.get("until"), Fraction(10**9))
                found.append((end, -instant(override.get("from"), Fraction(0)), i, override))
        if found:
            return min(found)[3]["limits"], True
        limits = rule["limits"]
        if isinstance(limits, dict):
            limits = limits.get(self.tier_of(request), limits.get("*"))
        return limits, False

    def decide(self, request: Request, now: Fraction) -> Any:
        """Whether it passes, the entry of a list that says so, and the outcome of each limit.

        In the place of the entry is "" where no rule applies, and None where some do.
        """
        listed = self.listed(request, now)
        if listed is not None:
            return listed[1], listed[0], []
        cost, priority = self.cost_of(request)
        charges = []
        applying = self.applying(request)
        for rule in applying:
            key = self.key_of(rule, request)
            limits, of_override = self.limits_of(rule, key, request, now)
            units = 1 if rule.get("counts") == "requests" else cost
            shadow = rule.get("shadow", False)
            for text in [limits] if isinstance(limits, str) else limits:
                if text == "unlimited":
                    continue
                count = int(text.replace("quota ", "").partition("/")[0])
                period = text.partition("/")[2]
                algorithm = rule.get("algorithm", "fixed-window")
                known_by = (
                    rule.get("counter", rule["id"]),
                    tuple(names_of(rule)),
                    key,
                    period,
                    algorithm,
                )
                charges.append((rule["id"], known_by, count, units, shadow))
                if not of_override and not shadow:
                    for share, left in self.shares(rule, count, priority):
                        charges.append((rule["id"], (*known_by, share), left, units, shadow))
        states = [self.state(known_by, count, now) for _, known_by, count, _, _ in charges]
        fits = [used + units <= count for used, (_, _, count, units, _) in zip(states, charges)]
        allowed = all(fit or shadow for fit, (*_, shadow) in zip(fits, charges))
        outcomes = []
        for used, fit, (id, known_by, count, units, _) in zip(states, fits, charges):
            if allowed and fit:
                used += units
                self.used[known_by] = (used, now)
            left = max(Fraction(0), count - used)
            outcomes.append((id, count, left.numerator // left.denominator, fit))
        return allowed, None if applying else "", sorted(outcomes)

    @staticmethod
    def shares(rule: Document, count: int, priority: str) -> list[tuple[str, int]]:
        """The counts that a request is in beside the whole, and how much they may use."""
        reserve = rule.get("reserve", {})
        kept = {
            name: reserve if isinstance(reserve, str) else reserve.get(name, "0%")
            for name in ("normal", "background")
        }
        found = []
        for name, of in (("normal", ("normal", "background")), ("background", ("background",))):
            percent = int(kept[name][:-1])
            if priority in of and percent:
                found.append((name, count * (100 - percent) // 100))
        return found

    def state(self, known_by: Any, count: int, now: Fraction) -> Fraction:
        """The units that are used at an instant."""
        used, at = self.used.get(known_by, (Fraction(0), Fraction(0)))
        period, algorithm = known_by[3], known_by[4]
        if period == "month":
            return used
        seconds = PERIODS[period]
        if algorithm == "token-bucket":
            return max(Fraction(0), used - (now - at) * Fraction(count, seconds))
        return used if at // seconds == now // seconds else Fraction(0)


def decide_by(limiter: Any, request: Request) -> Any:
    """The same of the limiter."""
    decision = limiter.check(**request)
    outcomes = sorted((o.rule, o.limit, o.remaining, o.allowed) for o in decision.outcomes)
    return decision.allowed, decision.rule, outcomes


def differences(seed: int, requests: int, kind: type[Oracle] = Oracle) -> list[str]:
    """Decides requests by one random document. Returns the first difference, in lines."""
    rng = random.Random(seed)
    document, rules = some_document(rng)
    clock = tg.ManualClock(0)
    limiter = tg.Limiter(rules=rules, clock=clock)
    oracle = kind(document)
    now = Fraction(0)
    patterns = [
        pattern
        for section in ("rules", "costs", "allow", "block")
        for each in document.get(section, [])
        for pattern in each.get("endpoints", [])
        if pattern.startswith("/")
    ]
    asked = []
    for _ in range(requests):
        if chosen(rng, 0.3):
            step = rng.choice([1, 7, 30, 61, 600])
            now += step
            clock.advance(step)
        request = some_request(rng, patterns)
        asked.append((float(now), request))
        allowed, rule, outcomes = oracle.decide(request, now)
        decided = decide_by(limiter, request)
        # With several limits the page does not say which is named; where none applies, none is.
        named = decided[1] if rule is None else rule or None
        if decided != (allowed, named, outcomes) or oracle.ambiguous:
            return [
                f"seed {seed}, {json.dumps(document)}",
                *(f"  at {at}: {each}" for at, each in asked[-8:]),
                f"  expected {(allowed, rule, outcomes)}, {oracle.ambiguous}",
                f"  decided  {decided}",
            ]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=10, help="of each set")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("tidegate").setLevel(logging.ERROR)  # random rules are not wise ones
    differ = 0
    for seed in range(options.seed, options.seed + options.sets):
        found = differences(seed, options.requests)
        if found:
            differ += 1
            print("\n".join(found))
    print(f"{options.sets} rule sets, {options.sets * options.requests} requests: {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
