"""Random rules and requests, decided as docs/rules.md says, and held to what the limiter decides.

Written from that page alone, so that it shares no code with the package, and no reading of it.
`make oracle` runs it: it prints each difference, with the document and the requests before.
"""

from __future__ import annotations

import argparse
import functools
import ipaddress
import json
import logging
import os
import random
import sys
import time
from collections import defaultdict, deque
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from typing import Any, NamedTuple

import tidegate as tg
from random_rules import (
    PRIORITIES,
    Document,
    Request,
    parts_of,
    some_document,
    some_request,
)

PERIODS = {"minute": 60, "hour": 3600}
NEVER = 10**12
# Most requests of a set were made before, so that what the page says of them is known.
FIRST_REQUESTS = 50
NEW_REQUESTS = 0.01


def names_of(rule: Document) -> list[str]:
    by = rule.get("by", "global")
    return [] if by == "global" else by.split("+")


def is_any(part: str) -> bool:
    return part == "*" or part.startswith("{")


@functools.lru_cache(maxsize=100_000)
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


@functools.lru_cache(maxsize=10_000)
def of_endpoint(pattern: str | None) -> tuple[int, ...]:
    """How specific, part by part: a name, then `*`, then `**`; no endpoint last."""
    if pattern is None or pattern == "**":
        return ()
    if not pattern.startswith("/"):
        return (9,)
    # Where a pattern ends, one that goes on with `**` is less specific.
    return (*(1 if p == "**" else 2 if is_any(p) else 3 for p in parts_of(pattern)), 2)


# Fields of an entry of a list that are no attributes of a request.
LIST_FIELDS = ("id", "endpoints", "methods", "tiers", "networks", "from", "until")

Address = Any


@functools.lru_cache(maxsize=10_000)
def address_of(text: str | None) -> Address:
    try:
        found: Address = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    if found.version == 6 and found in ipaddress.ip_network("64:ff9b::/96"):
        return ipaddress.ip_address(int(found) & 0xFFFFFFFF)
    return found


@functools.lru_cache(maxsize=10_000)
def network_of(text: str) -> Any:
    return ipaddress.ip_network(text)


@functools.lru_cache(maxsize=10_000)
def counted_ip(text: str) -> str:
    address = address_of(text)
    if address is None:
        return text
    if address.version == 6:
        return str(ipaddress.ip_network(f"{address}/64", strict=False))
    return str(address)


@functools.lru_cache(maxsize=10_000)
def instant(text: str | None, otherwise: int) -> int:
    """The second of a time with its zone, or at which a day begins."""
    if text is None:
        return otherwise
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return int((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp())


class Count:
    """What was used: in units, or of a bucket in units times the seconds of its period."""

    __slots__ = ("at", "is_bucket", "period", "scale", "used")

    def __init__(self, period: str, algorithm: str) -> None:
        self.period = period
        self.is_bucket = algorithm == "token-bucket"
        self.scale = PERIODS[period] if self.is_bucket else 1
        self.used = 0
        # When it was used: an instant, or the number of a window.
        self.at = 0


# The rule, the count, the limit, the units that a request costs, and whether in shadow.
Charge = tuple[str, Count, int, int, bool]


class Reading(NamedTuple):
    """What the page says of a request, whatever was used, until an instant."""

    listed: tuple[str, bool] | None  # the entry, and whether it allows
    rules: frozenset[str]
    charges: list[Charge]
    until: int


class Oracle:
    """Decides requests of one document, and counts."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.rules = [rule for rule in document["rules"] if rule.get("enabled", True)]
        self.tiers = document.get("tiers") or self.named_tiers()
        self.default_tier = document.get("default_tier")
        self.lists = []
        for section in ("block", "allow"):
            for entry in document.get(section, []):
                when = {name: value for name, value in entry.items() if name not in LIST_FIELDS}
                self.lists.append({**entry, "when": when, "allows": section == "allow"})
        self.counts: dict[Any, Count] = {}
        self.windows: dict[str, int] = {}
        self.now = -1
        self.until = NEVER
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
            network = network_of(text)
            if address is not None and address.version == network.version and address in network:
                networks.append(network.prefixlen + (96 if network.version == 4 else 0))
        if not endpoints or not networks:
            return None
        return max(endpoints), len(when), max(networks), bool(tiers), bool(methods), names_head

    def met_by(self, entries: list[Any], request: Request) -> list[tuple[Any, Any]]:
        """The entries whose conditions the request meets, and how specific they are."""
        return [
            (how, entry)
            for entry in entries
            if (how := self.specificity(entry, entry.get("when", {}), request)) is not None
        ]

    @staticmethod
    def most_specific(met: list[tuple[Any, Any]]) -> list[Any]:
        """The entries that are equally specific, and more so than all others."""
        best = max((how for how, _ in met), default=None)
        return [entry for how, entry in met if how == best]

    def in_force(self, entry: Document, now: int) -> bool:
        begin, end = instant(entry.get("from"), 0), instant(entry.get("until"), NEVER)
        self.until = min(self.until, *(at if at > now else NEVER for at in (begin, end)))
        return begin <= now < end

    def listed(self, request: Request, now: int) -> tuple[str, bool] | None:
        met = [each for each in self.met_by(self.lists, request) if self.in_force(each[1], now)]
        best = self.most_specific(met)
        return (best[0]["id"], best[0]["allows"]) if best else None

    def applying(self, request: Request) -> list[Document]:
        dimensions: dict[Any, list[Document]] = defaultdict(list)
        for rule in self.rules:
            if all(request.get(name) is not None for name in names_of(rule)):
                dimensions[self.dimension(rule)].append(rule)
        winners = []
        for rules in dimensions.values():
            best = self.most_specific(self.met_by(rules, request))
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
        best = self.most_specific(self.met_by(self.document.get("costs", []), request))
        if len(best) > 1:
            self.ambiguous.append("costs are equally specific")
        entry = best[0] if best else {}
        priority = entry.get("priority", "normal")
        if request.get("priority") in PRIORITIES:
            priority = request["priority"]
        return request["cost"] * entry.get("cost", 1), priority

    def limits_of(self, rule: Document, key: Any, request: Request, now: int) -> Any:
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
            if tuple(values) == key and self.in_force(override, now):
                end = instant(override.get("until"), NEVER)
                found.append((end, -instant(override.get("from"), 0), i, override))
        if found:
            return min(found)[3]["limits"], True
        limits = rule["limits"]
        if isinstance(limits, dict):
            limits = limits.get(self.tier_of(request), limits.get("*"))
        return limits, False

    def read(self, request: Request, now: int) -> Reading:
        self.until = NEVER
        listed = self.listed(request, now)
        if listed is not None:
            return Reading(listed, frozenset(), [], self.until)
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
                number, _, period = text.replace("quota ", "").partition("/")
                limit = int(number)
                algorithm = rule.get("algorithm", "fixed-window")
                names = tuple(names_of(rule))
                known_by = (rule.get("counter", rule["id"]), names, key, period, algorithm)
                charges.append((rule["id"], self.count(known_by), limit, units, shadow))
                if not of_override and not shadow:
                    for share, left in self.shares(rule, limit, priority):
                        count = self.count((*known_by, share))
                        charges.append((rule["id"], count, left, units, shadow))
        return Reading(None, frozenset(rule["id"] for rule in applying), charges, self.until)

    def count(self, known_by: Any) -> Count:
        found = self.counts.get(known_by)
        if found is None:
            found = self.counts[known_by] = Count(*known_by[3:5])
        return found

    def decide(self, charges: list[Charge], now: int) -> tuple[bool, list[Any]]:
        """Whether such a request passes, and the outcome of each limit."""
        if now != self.now:
            self.now = now
            at = datetime.fromtimestamp(now, timezone.utc)
            self.windows = {"month": at.year * 12 + at.month}
            for period, seconds in PERIODS.items():
                self.windows[period] = now // seconds
        allowed = True
        states = []
        for _, count, limit, units, shadow in charges:
            if count.is_bucket:
                used = max(0, count.used - (now - count.at) * limit)
            else:
                used = count.used if count.at == self.windows[count.period] else 0
            fits = used + units * count.scale <= limit * count.scale
            if not fits and not shadow:
                allowed = False
            states.append((used, fits))
        outcomes = []
        for (rule, count, limit, units, _), (used, fits) in zip(charges, states):
            if allowed and fits:
                used += units * count.scale
                count.used = used
                count.at = now if count.is_bucket else self.windows[count.period]
            left = limit * count.scale - used
            outcomes.append((rule, limit, left // count.scale if left > 0 else 0, fits))
        return allowed, outcomes

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


def in_order(charges: list[Charge], outcomes: list[Any], given: list[Any]) -> list[Charge]:
    """The charges in the order of the limiter's outcomes, to which the page gives none."""
    left = list(zip(outcomes, charges))
    ordered = []
    for outcome in given:
        at = [each for each, _ in left].index(outcome)
        ordered.append(left.pop(at)[1])
    return ordered


def differences(seed: int, requests: int, kind: type[Oracle] = Oracle) -> list[str]:
    """Decides requests by one random document. Returns the first difference, in lines."""
    rng = random.Random(seed)
    document, rules = some_document(rng)
    clock = tg.ManualClock(0)
    limiter = tg.Limiter(rules=rules, clock=clock)
    oracle = kind(document)
    patterns = [
        pattern
        for section in ("rules", "costs", "allow", "block")
        for each in document.get(section, [])
        for pattern in each.get("endpoints", [])
        if pattern.startswith("/")
    ]
    now = 0
    pace = rng.choice([0.02, 0.1, 0.3])
    pool: list[Request] = []
    readings: list[Reading | None] = []
    asked: deque[tuple[int, Request]] = deque(maxlen=8)
    for _ in range(requests):
        if rng.random() < pace:
            step = rng.choice([1, 7, 30, 61, 600])
            now += step
            clock.advance(step)
        if len(pool) < FIRST_REQUESTS or rng.random() < NEW_REQUESTS:
            place = len(pool)
            pool.append(some_request(rng, patterns))
            readings.append(None)
        else:
            place = int(rng.random() * len(pool))
        request, reading = pool[place], readings[place]
        if reading is None or reading.until <= now:
            reading = readings[place] = oracle.read(request, now)
        asked.append((now, request))
        decision = limiter.check(**request)
        given = [(o.rule, o.limit, o.remaining, o.allowed) for o in decision.outcomes]
        if reading.listed is not None:
            rule, allowed = reading.listed
            outcomes: list[Any] = []
            # Which of several the page does not say.
            named = decision.rule == rule
        else:
            allowed, outcomes = oracle.decide(reading.charges, now)
            named = decision.rule in reading.rules or (not reading.rules and decision.rule is None)
        alike = decision.allowed == allowed and named and not oracle.ambiguous
        if alike and given == outcomes:
            continue
        if alike and sorted(given) == sorted(outcomes):
            charges = in_order(reading.charges, outcomes, given)
            readings[place] = reading._replace(charges=charges)
            continue
        return [
            f"seed {seed}, {json.dumps(document)}",
            *(f"  at {at}: {each}" for at, each in asked),
            f"  expected {(allowed, reading.listed or sorted(reading.rules), outcomes)}, "
            f"{oracle.ambiguous}",
            f"  decided  {(decision.allowed, decision.rule, given)}",
        ]
    return []


def of_seed(seed: int, requests: int) -> list[str]:
    logging.getLogger("tidegate").setLevel(logging.ERROR)  # random rules are not wise ones
    return differences(seed, requests)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1000, help="of each set")
    parser.add_argument("--seed", type=int, default=1, help="of the first set")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args()
    began = time.monotonic()
    seeds = range(options.seed, options.seed + options.sets)
    differ = done = 0
    with ProcessPoolExecutor(options.jobs) as processes:
        for found in processes.map(functools.partial(of_seed, requests=options.requests), seeds):
            done += 1
            if found:
                differ += 1
                print("\n".join(found), flush=True)
            if done % 500 == 0 or done == options.sets:
                asked = done * options.requests
                rate = asked / (time.monotonic() - began)
                print(
                    f"{done} rule sets, {asked} requests, {rate:.0f} a second: {differ} differ",
                    flush=True,
                )
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
