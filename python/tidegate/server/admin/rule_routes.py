"""Routes that list, add, change and delete single rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Optional, Union

from fastapi import APIRouter, Body, Query, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from tidegate.rules.advice import advise
from tidegate.rules.model import Rules
from tidegate.rules.problems import Problem
from tidegate.rules.rule_set import RuleSet
from tidegate.rules.sql.stored_rules import StoredRules, etag_of
from tidegate.server.admin.bodies import ChangedRules, EndpointLimit, NewRules, RuleList
from tidegate.server.admin.context import AChange, Admin, AdminRoute, TheAdmin, role
from tidegate.server.admin.problems import ProblemError, problems_of
from tidegate.server.admin.rule_edits import remove_rule, save_rules

__all__ = ["router"]

router = APIRouter(route_class=AdminRoute, prefix="/v1/admin/ratelimit", tags=["rules"])

_RULE_EXAMPLE = {"by": "user", "endpoints": ["/api/*"], "limits": {"premium": "2000/minute"}}


@router.get("/rules", openapi_extra=role("viewer"), response_model=RuleList)
def list_rules(
    admin: TheAdmin,
    response: Response,
    tier: Annotated[Optional[str], Query(description="The limits of this tier.")] = None,
    id: Annotated[Optional[str], Query(description="The rule with this id.")] = None,
    endpoint: Annotated[
        Optional[str], Query(description="Rules with exactly this endpoint pattern.")
    ] = None,
) -> Any:
    """Lists the rules in force."""
    found, etag, tiers, advice = _in_force(admin)
    if id is not None:
        found = [rule for rule in found if rule["id"] == id]
    if endpoint is not None:
        found = [rule for rule in found if endpoint in rule.get("endpoints", ())]
    rules = [{**rule, "etag": etag_of(rule)} for rule in found]
    if tier is not None:
        rules = _of_tier(rules, tier, tiers)
    response.headers["ETag"] = f'"{etag}"'
    return {"etag": etag, "rules": rules, "advice": problems_of(advice)}


def _in_force(admin: Admin) -> tuple[list[dict[str, Any]], str, set[str], Iterable[Problem]]:
    """Returns the fields of the rules, their ETag, the tiers that exist, and likely mistakes."""
    foreign = admin.foreign_rules
    if foreign is not None:
        rules = [rule.model_dump(mode="json", exclude_defaults=True) for rule in foreign.rules]
        return rules, foreign.digest, tiers_of(foreign), foreign.advice
    with admin.database.snapshot() as connection:
        stored = StoredRules(connection, admin.database.name)
    likely = advise(stored.document, stored.model)
    return stored.plain["rules"], stored.etag, tiers_of(stored.model), likely


@router.get("/rules/{tier}", openapi_extra=role("viewer"), response_model=RuleList)
def list_rules_of_tier(admin: TheAdmin, response: Response, tier: str) -> Any:
    """Returns the rules that apply to a tier, with its limits."""
    return list_rules(admin, response, tier)


def _of_tier(rules: list[dict[str, Any]], tier: str, known: set[str]) -> list[dict[str, Any]]:
    if tier not in known:
        raise ProblemError(
            404, f"there is no tier {tier!a:.80}; expected {', '.join(sorted(known)) or 'none'}"
        )
    found = []
    for rule in rules:
        limits = rule["limits"]
        if isinstance(limits, dict):
            limits = limits.get(tier, limits.get("*"))
        if limits is not None and tier in rule.get("tiers", [tier]):
            found.append({**rule, "limits": limits})
    return found


def tiers_of(rules: Union[RuleSet, Rules]) -> set[str]:
    """Returns the tiers that exist, as limiters see them."""
    if rules.tiers:
        return set(rules.tiers)
    found = set() if rules.default_tier is None else {rules.default_tier}
    for rule in rules.rules:
        found.update(rule.tiers)
        if isinstance(rule.limits, dict):
            found.update(rule.limits)
    return found - {"*"}


@router.post("/rules", openapi_extra=role("admin"), response_model=ChangedRules, status_code=201)
def add_rules(asked: AChange, response: Response, new: NewRules) -> Any:
    """Adds rules, or sets the limits of a tier at endpoints."""

    def propose(stored: StoredRules) -> Any:
        asked.check_read(stored.etag, is_required=False)
        rules: dict[str, Any] = {}
        for i, item in enumerate(new.rules):
            fields = _fields_of(stored, rules, item, new.tier, i)
            rules[fields["id"]] = (fields, ("rules", i))
        return save_rules(stored, rules, asked.comment)

    done, _ = asked.make(propose)
    response.headers["ETag"] = f'"{done.etag}"'
    return done


def _fields_of(
    stored: StoredRules, added: dict[str, Any], item: dict[str, Any], tier: Optional[str], i: int
) -> dict[str, Any]:
    if "window" in item or type(item.get("limit")) is int:
        return _with_endpoint_limit(stored, added, item, tier or "*", i)
    if tier is not None:
        key = "limit" if "limit" in item else "limits"
        if isinstance(item.get(key), dict):
            raise ProblemError(
                422, f"rules[{i}].{key} is by tier; expected the limits of {tier!a:.60} alone"
            )
        item = {**item, key: {tier: item.get(key)}}
    check_id(item.get("id"), f"rules[{i}].id")
    if stored.rule(item["id"]) is not None or item["id"] in added:
        raise ProblemError(
            409, f"there is a rule {item['id']!a:.120} already; expected a PUT to change it"
        )
    return item


def _with_endpoint_limit(
    stored: StoredRules, added: dict[str, Any], item: dict[str, Any], tier: str, i: int
) -> dict[str, Any]:
    try:
        given = EndpointLimit.model_validate(item)
    except ValidationError as error:
        raise RequestValidationError(
            [{**each, "loc": ("body", "rules", i, *each["loc"])} for each in error.errors()]
        ) from None
    id = f"endpoint:{given.endpoint}"
    check_id(id, f"rules[{i}].endpoint")
    burst = "" if given.burst is None else f" burst {given.burst}"
    limits = {tier: f"{given.limit}/{given.window} seconds{burst}"}
    before = added[id][0] if id in added else stored.rule(id)
    if before is None:
        return {"id": id, "by": "user", "endpoints": [given.endpoint], "limits": limits}
    known = before["limits"]
    return {**before, "limits": {**(known if isinstance(known, dict) else {"*": known}), **limits}}


def check_id(id: Any, where: str) -> None:
    """Raises ProblemError for an id that the path of a URL cannot hold."""
    if not isinstance(id, str) or not id:
        raise ProblemError(422, f"{where} is {id!a:.80}; expected the id of the rule")
    if {".", ".."} & set(id.removeprefix("endpoint:").split("/")):
        raise ProblemError(
            422, f"{where} is {id!a:.80}; expected no part '.' or '..' between slashes"
        )


@router.put("/rules/{rule_id:path}", openapi_extra=role("admin"), response_model=ChangedRules)
def change_rule(
    asked: AChange,
    response: Response,
    rule_id: str,
    rule: Annotated[dict[str, Any], Body(examples=[_RULE_EXAMPLE])],
) -> Any:
    """Replaces a rule. `If-Match` is the rule's own `etag`."""
    if rule.get("id", rule_id) != rule_id:
        raise ProblemError(422, f"id is {rule['id']!a:.120}; expected {rule_id!a}, as in the path")

    def propose(stored: StoredRules) -> Any:
        asked.check_read(etag_of(_known(stored, rule_id)), is_required=True)
        return save_rules(stored, {rule_id: ({**rule, "id": rule_id}, ())}, asked.comment)

    done, after = asked.make(propose)
    response.headers["ETag"] = f'"{etag_of(after.rule(rule_id))}"'
    return done


@router.delete("/rules/{rule_id:path}", openapi_extra=role("admin"), response_model=ChangedRules)
def delete_rule(asked: AChange, rule_id: str) -> Any:
    """Deletes a rule, for all tiers."""

    def propose(stored: StoredRules) -> Any:
        asked.check_read(etag_of(_known(stored, rule_id)), is_required=False)
        return remove_rule(stored, rule_id, asked.comment)

    return asked.make(propose)


def _known(stored: StoredRules, id: str) -> dict[str, Any]:
    rule = stored.rule(id)
    if rule is None:
        raise ProblemError(404, f"there is no rule {id!a:.120}")
    return rule
