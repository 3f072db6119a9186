"""Changes rules in one transaction, which is accepted as a whole or writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.rules.diff import differences
from tidegate.rules.document import Document, as_text
from tidegate.rules.problems import Problem, RulesError
from tidegate.rules.sql.read import EVERYBODY, NOBODY
from tidegate.rules.sql.stored_rules import (
    StoredRules,
    compiled_model,
    rows_of_rules,
)
from tidegate.rules.sql.write import (
    delete_rule,
    write_costs,
    write_document,
    write_lists,
    write_rule,
)
from tidegate.server.admin.bodies import ChangedRules
from tidegate.server.records.rule_versions import keep_what_others_wrote, put_into_force

if TYPE_CHECKING:
    from tidegate.rules import model
    from tidegate.server.admin.database import Change

    Where = tuple[str | int, ...]
    Fields = dict[str, Any]

__all__ = [
    "Proposal",
    "put_document",
    "remove_rule",
    "save_entries",
    "save_rules",
    "stored_or_none",
]

_MOST_CHANGES = 200


class Proposal(Document):
    """The rules in force with a part of them replaced.

    `given` maps each place in the document that the request set to its place in the request.
    """

    def __init__(self, data: Fields, given: dict[Where, Where]) -> None:
        super().__init__(data, "rules in force", lambda where: None)
        self._given = given

    def problem(self, where: Where, message: str) -> Problem:
        known = self._given.get(where[:2])
        if known is None:
            return Problem(self.source, None, as_text(where), message)
        return Problem("body", None, as_text((*known, *where[2:])), message)


def save_rules(
    change: Change, stored: StoredRules, rules: dict[str, tuple[Fields, Where]], comment: str | None
) -> ChangedRules:
    """Adds rules, or replaces those that have the same ids.

    `rules` maps each id to the rule's fields and its place in the request. Raises RulesError.
    """
    data = [dict(rule) for rule in stored.document.data.get("rules", [])]
    places = {rule["id"]: i for i, rule in enumerate(data)}
    given: dict[Where, Where] = {}
    created, updated = [], []
    for id, (fields, where) in rules.items():
        if id in places:
            updated.append(id)
            data[places[id]] = fields
        else:
            created.append(id)
            places[id] = len(data)
            data.append(fields)
        given["rules", places[id]] = where
    proposed = compiled_model(Proposal({**stored.document.data, "rules": data}, given))
    keep_what_others_wrote(change.connection, stored.plain, change.now)
    rows = rows_of_rules(change.connection)
    for id in rules:
        write_rule(change.connection, proposed.rules[places[id]], rows.get(id, []))
    done, after = _put_into_force(change, stored.document.source, comment, stored)
    for id in rules:
        action = "rule.create" if id in created else "rule.update"
        change.record(action, f"rule:{id}", before=stored.rule(id), after=after.rule(id))
    return done.model_copy(update={"created": created, "updated": updated})


def remove_rule(change: Change, stored: StoredRules, id: str, comment: str | None) -> ChangedRules:
    """Deletes a rule. Raises RulesError if something else needs it."""
    data = [rule for rule in stored.document.data.get("rules", []) if rule["id"] != id]
    compiled_model(Proposal({**stored.document.data, "rules": data}, {}))
    keep_what_others_wrote(change.connection, stored.plain, change.now)
    delete_rule(change.connection, rows_of_rules(change.connection)[id])
    done, _ = _put_into_force(change, stored.document.source, comment, stored)
    change.record("rule.delete", f"rule:{id}", before=stored.rule(id))
    return done.model_copy(update={"deleted": [id]})


def save_entries(
    change: Change,
    stored: StoredRules,
    field: str,
    entries: list[Fields],
    given: dict[Where, Where],
    *,
    action: str,
    comment: str | None,
) -> ChangedRules:
    """Replaces the entries of `allow`, `block` or `costs`. Raises RulesError.

    `given` maps the places of new entries in the document to their places in the request.
    """
    proposed = compiled_model(Proposal({**stored.document.data, field: entries}, given))
    keep_what_others_wrote(change.connection, stored.plain, change.now)
    write = write_costs if field == "costs" else write_lists
    write(change.connection, proposed)
    done, after = _put_into_force(change, stored.document.source, comment, stored)
    before = stored.plain.get(field, [])
    change.record(action, field, before=before, after=after.plain.get(field, []))
    return done


def put_document(
    change: Change,
    source: str,
    rules: model.Rules,
    *,
    with_overrides: bool,
    comment: str | None,
    action: str,
    target: str,
) -> ChangedRules:
    """Puts a whole document into force, even if the one before was not accepted."""
    of = EVERYBODY if with_overrides else NOBODY
    stored = stored_or_none(change, source, of)
    if stored is not None:
        keep_what_others_wrote(change.connection, stored.plain, change.now)
    write_document(change.connection, rules, with_overrides=with_overrides)
    done, _ = _put_into_force(change, source, comment, stored, with_overrides=with_overrides)
    before = None if stored is None else {"etag": stored.etag}
    after = {"etag": done.etag, "version": done.version, "changes": done.changes}
    change.record(action, target, before=before, after=after)
    return done


def stored_or_none(change: Change, source: str, of: Any = NOBODY) -> StoredRules | None:
    """Returns the rules of the tables, or None if they are not accepted."""
    try:
        return StoredRules(change.connection, source, of)
    except RulesError:
        return None


def _put_into_force(
    change: Change,
    source: str,
    comment: str | None,
    before: StoredRules | None,
    *,
    with_overrides: bool = False,
) -> tuple[ChangedRules, StoredRules]:
    """Reads all that was written, as limiters will, and adds it as a version."""
    after = StoredRules(change.connection, source, EVERYBODY)
    version = put_into_force(
        change.connection, after.plain, change.actor.name[:255], comment, change.now
    )
    # If the overrides stay, `before` was read without them.
    now = after.model if with_overrides else after.model.model_copy(update={"overrides": []})
    changes = [] if before is None else differences(before.model, now)[:_MOST_CHANGES]
    return ChangedRules(version=version, etag=after.etag, changes=changes), after
