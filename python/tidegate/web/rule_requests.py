"""Decides on requests by rules."""

from __future__ import annotations

import contextlib
import inspect
import re
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Callable, overload
from uuid import UUID

from tidegate import _core
from tidegate._core import add_attributes
from tidegate.keys import peer
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.rule_limiter import RuleLimiter
from tidegate.web.addresses import address_of
from tidegate.web.callables import check_function, check_result, refuse_misuse, wrong_result
from tidegate.web.execution import AWAITING, Awaiting, Blocking, Execution
from tidegate.web.headers import FAMILIES, OPENAI, SHADOW, Problems, check_families, fields_for
from tidegate.web.hooks import Hooks, log
from tidegate.web.observers import Refusal, observers
from tidegate.web.registry import register_rules
from tidegate.web.request_access import connection_of, path_of, source_of
from tidegate.web.request_limiter import Checked, RequestDecision, check_cost
from tidegate.web.router_paths import PathReader, ignores_case, in_lower_case, reads_other_roots
from tidegate.web.rule_charge import RuleCharge
from tidegate.web.shadow import ShadowDecision, refused_in_shadow
from tidegate.web.switch import switch

if TYPE_CHECKING:
    from tidegate._core import Decision

__all__ = ["RuleRequests", "attributes_by_option", "checked_readers"]

Attributes = dict[str, Any]
Reader = Callable[[Any], Any]

_UNKNOWN = object()
# Replaces an attribute whose function failed. No header, path or address holds a NUL.
_STAND_IN = "\0"


class RuleRequests:
    """Decides on requests by the rules of one limiter.

    `attributes` maps the name of each attribute to a function of the request that returns it: a
    str or bytes, None if the request has none, or an awaitable of these. Every request has the
    attributes endpoint (its path), method and ip, even if `attributes` does not name them. Nothing
    that a client sends makes a rule not apply: if the function of an attribute that rules count by
    fails, the failure is logged, and the request counts together with all others of its client for
    which the function fails. An exception of the function of the tier, or of an attribute in a
    rule's conditions, reaches the request, as with limit functions: it is the service's own error.
    """

    def __init__(
        self,
        limiter: RuleLimiter,
        *,
        attributes: Mapping[str, Reader] | None = None,
        cost: int | Reader = 1,
        cost_after: Callable[[Any, Any], Any] | None = None,
        exempt_when: Reader | None = None,
        enabled: bool = True,
        on_refused: Callable[..., Any] | None = None,
        headers: Iterable[str],
        retry_jitter: float | Callable[[float], Any] = 0.0,
        reads_path: PathReader | None = None,
    ) -> None:
        self.hooks = Hooks(cost_after=cost_after, on_refused=on_refused, retry_jitter=retry_jitter)
        self.limiter = limiter
        self.headers = headers = list(headers) if not isinstance(headers, str) else [headers]
        families = check_families(headers, of_rules=True)
        self._readers = {
            name: _plain_address(reader, self.hooks) if name == "ip" else reader
            for name, reader in checked_readers(attributes).items()
        }
        self._endpoint_is_path = "endpoint" not in self._readers
        self._ignores_case = self._endpoint_is_path and ignores_case(reads_path)
        usual = dict(_USUAL_READERS)
        if self._endpoint_is_path and reads_path is not None:
            # The core reads requests without a root path, where only those with one differ.
            readers = usual if reads_other_roots(reads_path) else self._readers
            readers["endpoint"] = reads_path
        # The attributes that no request had so far, with the number of requests.
        self._unseen = dict.fromkeys(self._readers, 0)
        self._usual_readers = {
            name: reader for name, reader in usual.items() if name not in self._readers
        }
        if exempt_when is not None:
            check_function("exempt_when", exempt_when, ("the request",))
        if callable(cost):
            check_function("cost", cost, ("the request",))
        else:
            check_cost((), cost)
        if not isinstance(enabled, bool):
            raise ArgumentTypeError(f"enabled is {enabled!r}; expected True and False")
        self._cost: Any = cost
        self._exempt_when = exempt_when
        self._enabled = enabled
        self._families = tuple(family for family in families if family != SHADOW)
        # The beginning of the keys of its plans, besides the keys of other families.
        self._start = bytes(family in self._families for family in (*FAMILIES, OPENAI))
        self._shows_shadow = SHADOW in families
        # Whether a request is decided without calling any function in Python but those of the cost
        # and of exemption.
        self._reads_in_core = (
            not self._readers and type(limiter) is RuleLimiter and not limiter._in_python
        )
        # Charges a request whose attributes are known, where nothing must be awaited.
        watching = None if self.hooks.adds_wait else observers
        self._charge_at_once: Any = (
            None
            if limiter.storage.blocks
            else _core.RuleChecker(RequestDecision, limiter, self, watching, self._start)
        )
        # The requests after which endpoints of rules are compared with those of requests.
        self._uncompared = 0
        register_rules(limiter)
        limiter._bound.slips.of_web = True
        self._compare(limiter.rules)
        limiter._watch(self._compare)

    def _compare(self, rules: Any) -> None:
        """Warns of attributes that rules look at and no request has, and of endpoints."""
        if rules.endpoint_names and self._endpoint_is_path:
            log.warning(
                "rate limiting: rules of %s name the endpoint %.80r, and the endpoint of requests "
                "here is their path; expected a path, or attributes={'endpoint': ...} that returns "
                "such names",
                rules.source, rules.endpoint_names[0],
            )  # fmt: skip
        known = {*self._readers, *_USUAL_READERS, "tier", "priority"}
        lacking = sorted(set(rules._compiled._attributes) - known)
        if lacking:
            log.warning(
                "rate limiting: rules of %s look at %s, which no request has here, so they never "
                "apply; expected attributes={%r: ...}",
                rules.source, " and ".join(lacking), lacking[0],
            )  # fmt: skip
        self._compare_tiers(rules)
        self._compare_case(rules)
        self._uncompared = _MANY if any(r.enabled and r.endpoints for r in rules.rules) else 0

    def _compare_tiers(self, rules: Any) -> None:
        """Warns of limits by tier, if nothing gives requests a tier."""
        if "tier" in self._readers or self.limiter._tiers is not None:
            return
        tiers, default = rules.named_tiers, rules.default_tier
        if tiers <= {default}:
            return
        log.warning(
            "rate limiting: rules of %s name the tiers %s, and no request has a tier here, so %s; "
            "expected tiers=Tiers(...), or attributes={'tier': ...}",
            rules.source, ", ".join(sorted(tiers)),
            f"each has the default tier {default!r}" if default else "those for tiers never apply",
        )  # fmt: skip

    def _compare_case(self, rules: Any) -> None:
        """Warns of endpoints in upper case, if the router ignores case."""
        if not self._ignores_case:
            return
        named = [endpoint for rule in rules.rules if rule.enabled for endpoint in rule.endpoints]
        upper = [endpoint for endpoint in named if endpoint != in_lower_case(endpoint)]
        if upper:
            log.warning(
                "rate limiting: rules of %s name the endpoint %.80r, and the router here ignores "
                "case, so the endpoint of a request is its path in lower case; expected %.80r",
                rules.source, upper[0], in_lower_case(upper[0]),
            )  # fmt: skip

    def _compare_endpoints(self, request: Any) -> None:
        """Warns if no rule with an endpoint has applied to many requests."""
        self._uncompared -= 1
        if self._uncompared:
            return
        rules, stats = self.limiter.rules, self.limiter.rule_stats()
        counted = [stats[r.id] for r in rules.rules if r.enabled and r.endpoints and r.id in stats]
        if any(each.allowed or each.refused or each.refused_in_shadow for each in counted):
            return
        reader: Any = {**self._usual_readers, **self._readers}["endpoint"]
        with contextlib.suppress(Exception):  # of a function of the service
            log.warning(
                "rate limiting: none of the rules of %s with an endpoint applied to any of %d "
                "requests, the last of which has the endpoint %.80r; expected the path inside the "
                "application, without the prefix of a mount, of root_path or of SCRIPT_NAME",
                rules.source, _MANY, reader(request),
            )  # fmt: skip

    def _note(self, request: Any, name: str, value: Any) -> None:
        """Warns of an attribute that no request had so far."""
        if value is not None:
            self._unseen.pop(name, None)
        elif name in self._unseen and _lacks_authentication(request, self._readers[name]):
            del self._unseen[name]
            log.warning(
                "rate limiting: the attribute %s is keys.user(), and no middleware that sets "
                "scope['user'] ran before, so rules that count by it do not apply; expected one "
                "around this middleware, or a function that reads the token or session", name,
            )  # fmt: skip
        elif name in self._unseen:
            self._unseen[name] += 1
            if self._unseen[name] >= _MANY:
                del self._unseen[name]
                log.warning(
                    "rate limiting: the attribute %s had no value in %d requests, so rules that "
                    "count by it never applied; expected a function that finds it before the "
                    "request reaches its route",
                    name, _MANY,
                )  # fmt: skip

    def exempts(self, request: Any, method: str = "") -> bool:
        """Returns whether a request with an exempt method or path passes uncounted; `method` is the
        exempt method.

        It does not if the request is on a list, or if the method is OPTIONS and a rule names it, or
        if an attribute that lists look at is not known without waiting.
        """
        rules = self.limiter.rules
        if not (switch.on and self._enabled):
            return True
        if method == "OPTIONS" and rules.names_options:
            return False
        if not rules.blocked:
            return True
        attributes = {}
        for name, reader in {**self._usual_readers, **self._readers}.items():
            try:
                value = reader(request)
            except Exception:
                value = _UNKNOWN
            if inspect.iscoroutine(value):
                value.close()
                value = _UNKNOWN
            if isinstance(value, (int, UUID)):
                value = str(value)
            if isinstance(value, (str, bytes)):
                attributes[name] = value
            elif value is not None and name in rules.conditions:
                return False  # check() finds out whether an entry is met
        return self.limiter._match(self.limiter._with_tier(attributes))[0] is None

    @overload
    def check(self, request: Any, execution: Blocking) -> RequestDecision | None: ...
    @overload
    def check(self, request: Any, execution: Awaiting = ...) -> Checked: ...
    def check(self, request: Any, execution: Execution = AWAITING) -> Checked:
        """Charges the request; returns None if no limit applies to it."""
        if not (switch.on and self._enabled):
            return None
        if self._uncompared:
            self._compare_endpoints(request)
        exempt: Any = False
        if self._exempt_when is not None:
            exempt = self.hooks.call_exempt(self._exempt_when, request)
            if exempt is True:
                return None
        cost: Any = self._cost
        attributes: Attributes | None = None
        charge_at_once = self._charge_at_once
        if charge_at_once is not None and exempt is False:
            if type(cost) is not int:
                cost = self.hooks.cost_of(cost, request, execution)
            if type(cost) is int:
                found: Any = NotImplemented
                if self._reads_in_core:
                    found = charge_at_once(request, cost, None)
                if found is NotImplemented:
                    attributes = {"cost": cost}
                    if not self._read(request, attributes):
                        found = charge_at_once(request, cost, attributes)
                if found is not NotImplemented:
                    decided: Checked = found
                    return decided
        later: Any = execution.run(self._check_later(request, execution, exempt, cost, attributes))
        waiting: Checked = later
        return waiting

    async def _check_later(
        self,
        request: Any,
        execution: Execution,
        exempt: Any,
        cost: Any,
        attributes: Attributes | None,
    ) -> RequestDecision | None:
        """Does what check() does, which has asked some functions already: `exempt` and `cost` may
        be awaitables of their values, as each of the attributes."""
        if exempt is not False and await self.hooks.is_exempt(request, exempt, execution):
            return None
        if callable(cost):
            cost = self.hooks.cost_of(cost, request, execution)
        if not isinstance(cost, int):
            cost = await cost
        if attributes is None:
            attributes = {"cost": cost}
            self._read(request, attributes)
        for name, value in attributes.items():
            if _is_awaitable(value):
                try:
                    found = await execution.resolve(value)
                except Exception as exc:
                    found = self._stand_in(request, name, "its function raised", exc)
                else:
                    found = self._checked(request, name, found)
                self._note(request, name, found)
                attributes[name] = found
        decision = await execution.check_rules(self.limiter, attributes)
        return self._finish(request, attributes, decision)

    def _read(self, request: Any, attributes: Attributes) -> bool:
        """Reads the attributes of a request. Returns whether some of them must be awaited."""
        must_await = False
        for name, reader in self._readers.items():
            value = self._value(request, name, reader)
            if type(value) is not str and _is_awaitable(value):
                must_await = True
            elif self._unseen:
                self._note(request, name, value)
            attributes[name] = value
        if not add_attributes(request, attributes):
            for name, reader in self._usual_readers.items():
                attributes[name] = self._value(request, name, reader)
        return must_await

    def _value(self, request: Any, name: str, reader: Reader) -> Any:
        try:
            value = reader(request)
        except Exception as exc:
            return self._stand_in(request, name, "its function raised", exc)
        if value is None or type(value) is str or inspect.isawaitable(value):
            return value
        return self._checked(request, name, value)

    def _checked(self, request: Any, name: str, value: Any) -> Any:
        if value is None or isinstance(value, (str, bytes)):
            return value
        if isinstance(value, (int, UUID)) and not isinstance(value, bool):
            return str(value)  # ids of users are often such
        raise wrong_result(f"the function of the attribute {name}", value)

    def _stand_in(
        self, request: Any, name: str, problem: str, exc: BaseException | None = None
    ) -> str:
        if isinstance(exc, Exception):
            refuse_misuse(f"the attribute {name}", request, exc)
        if name in self.limiter.rules.conditions:
            if exc is not None:
                raise exc
            raise ArgumentTypeError(f"the attribute {name} is unknown: {problem}")
        self.hooks.log_throttled(
            "the attribute %s is unknown: %s; the client's address is counted in its place",
            name,
            problem,
            exc=exc,
        )
        return _STAND_IN + (peer(request) or "")

    def _finish(
        self, request: Any, attributes: Attributes, decision: Decision
    ) -> RequestDecision | None:
        if decision.allowed and not decision.outcomes:
            return None
        plan = self._plan_of(decision)
        extra = 0.0
        charges: Any = attributes
        if not decision.allowed:
            extra = self.hooks.extra_wait(decision)
            charges = ()
            if observers.refusals:
                refusal = Refusal(
                    self.limiter._prefix, None, decision, cost=attributes["cost"], request=request
                )
                observers.notify(refusal, self.hooks)
        fields = plan.fields if decision._policy in plan.shown else plan.bare
        kind = RequestDecision if not plan.has_shadow else self._kind_of(decision)
        return kind._make(fields, decision, None, extra, self, plan, charges)

    def decide(
        self, limits: Any, decision: Decision, decided_ns: int | None, charges: Any
    ) -> RequestDecision:
        """Returns the content of a response for a `decision` that lets a request pass."""
        fields = limits.fields if decision._policy in limits.shown else limits.bare
        kind = self._kind_of(decision)
        return kind._make(fields, decision, decided_ns, 0.0, self, limits, charges)

    def _kind_of(self, decision: Decision) -> type[RequestDecision]:
        is_told = self._shows_shadow and refused_in_shadow(decision)
        return ShadowDecision if is_told else RequestDecision

    def _plan_of(self, decision: Decision) -> _RulePlan:
        """Returns the limits of `decision` with their fields. Made once for each set of rules."""
        owner: Any = decision._owner
        plans: dict[Any, _RulePlan] = owner.plans
        # Without outcomes no rule decides, or an entry of a list, whose name is part of the key.
        key = decision._plan_key(self._start) if decision.outcomes else (self._start, decision.rule)
        plan = plans.get(key)
        if plan is None:
            if len(plans) >= _MOST_PLANS:
                plans.clear()
            plan = plans[key] = _RulePlan(self.limiter, decision, self._families, owner.hidden)
        return plan

    def _charge_of(self, attributes: Attributes, cost: Any, decision: Decision) -> RuleCharge:
        plan = self._plan_of(decision)
        return RuleCharge(self.hooks, self.limiter, attributes, decision, plan.lease_ns)


def _lacks_authentication(request: Any, reader: Any) -> bool:
    """Whether `reader` is that of keys.user(), and the scope `request` shows that nothing looked
    for a user, as opposed to a stranger who is none."""
    is_scope = isinstance(request, Mapping) and "type" in request
    return is_scope and "user" not in request and hasattr(reader, "finds_user")


def _is_awaitable(value: Any) -> bool:
    return value is not None and inspect.isawaitable(value)


# The number of requests without a value for an attribute after which a warning is logged.
_MANY = 1000
_PLAIN_ADDRESS = re.compile(r"[0-9.]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")

# The most sets of limits that apply together; a service has few such sets.
_MOST_PLANS = 4096


class _RulePlan:
    """The limits that apply to a request, and the fields and bodies of its responses."""

    # Decisions of rules have the outcomes of all limits.
    shows_all = False
    __slots__ = (
        "_limiter",
        "bare",
        "fields",
        "fields_by_limit",
        "has_shadow",
        "lease_ns",
        "problems",
        "shown",
    )

    def __init__(
        self,
        limiter: RuleLimiter,
        decision: Decision,
        families: tuple[str, ...],
        hidden: frozenset[str],
    ) -> None:
        # The limiter's rules keep their plans, so a plan must not keep the limiter alive.
        self._limiter = weakref.ref(limiter)
        outcomes = decision.outcomes or (decision,)
        limits = list({o._limit.name: o._limit for o in outcomes}.values())
        counted = {
            o._limit.name: o._limit
            for o in decision.outcomes
            if o.rule not in hidden and not o._limit.shadow
        }
        self.shown = frozenset(counted)
        self.has_shadow = any(limit.shadow for limit in limits)
        leases = [limit.period_ns for limit in limits if limit.algorithm == "concurrency"]
        # The shortest lease of the places that its requests take; 0 if they take none.
        self.lease_ns = min(leases, default=0)
        self.bare = fields_for(limiter, limits, ())
        self.fields = (
            fields_for(limiter, list(counted.values()), families) if counted else self.bare
        )
        # The fields by binding limit, for the core's RuleChecker; None if it cannot choose.
        self.fields_by_limit = (
            None
            if self.has_shadow
            else tuple(
                self.fields if o._limit.name in self.shown else self.bare for o in decision.outcomes
            )
        )
        self.problems = Problems(limits)

    @property
    def limiter(self) -> RuleLimiter:
        """The limiter of the rules, which every decision on a request keeps."""
        limiter = self._limiter()
        assert limiter is not None
        return limiter


def attributes_by_option(attributes: Any, name: str = "attributes") -> dict[str, Any]:
    """Returns the functions of attributes, each by its name in messages."""
    if not isinstance(attributes, Mapping):
        return {}
    return {f"{name}[{attribute!r}]": reader for attribute, reader in attributes.items()}


def checked_readers(attributes: Mapping[str, Reader] | None) -> dict[str, Reader]:
    """Returns the functions of attributes. Raises ConfigurationError for invalid ones."""
    if attributes is None:
        return {}
    if not isinstance(attributes, Mapping):
        raise ArgumentTypeError(
            f"the attributes are {attributes!r} of type {type(attributes).__name__}; expected a "
            "mapping from names to functions of the request, such as {'user': keys.user()}"
        )
    for name, reader in attributes.items():
        if not isinstance(name, str) or not name.isidentifier() or name == "cost":
            raise ConfigurationError(
                f"an attribute is named {name!r}; expected a name such as 'user' or 'tenant'"
            )
        if not callable(reader):
            raise ArgumentTypeError(
                f"the attribute {name} is {reader!r} of type {type(reader).__name__}; expected a "
                "function of the request"
            )
        check_function(f"attributes[{name!r}]", reader, ("the request",))
        check_result(f"attributes[{name!r}]", reader)
    return dict(attributes)


def _address_of(request: Any) -> str:
    """Returns the client's address. Clients without one, on a Unix socket, count together."""
    return connection_of(request) or _STAND_IN


def _plain_address(reader: Reader, hooks: Hooks) -> Reader:
    """Returns a function of the client's own address, without a port, a zone or brackets."""
    # Key functions return the network that IPv6 clients are counted by.
    reader = getattr(reader, "address", reader)

    def address(request: Any) -> Any:
        value = reader(request)
        if not isinstance(value, str) or _PLAIN_ADDRESS.fullmatch(value):
            return value
        # The network of an IPv6 client is taken for the client.
        found = address_of(value.partition("%")[0].partition("/")[0])
        if found is None:
            hooks.log_throttled(
                "the ip %.80s is not an address, so networks and lists do not hold for it", value
            )
            return value
        return value if "/" in value else str(found)

    return address


def _method_of(request: Any) -> str | None:
    source = source_of(request)
    if source.get("type") == "websocket":
        return "GET"  # as its handshake has
    method = source.get("method") or source.get("REQUEST_METHOD")
    return method if isinstance(method, str) else None


# The readers for requests that add_attributes() does not handle.
_USUAL_READERS: dict[str, Reader] = {
    "endpoint": path_of,
    "method": _method_of,
    "ip": _address_of,
}
