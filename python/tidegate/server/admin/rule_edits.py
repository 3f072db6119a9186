"""Changes rules in one transaction, which is accepted as a whole or writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from tidegate.rules.compile import Compiled, StaleOverridesError, compile_rules, validate
from tidegate.rules.diff import differences
from tidegate.rules.document import Document, as_text
from tidegate.rules.problems import Problem, RulesError
from tidegate.rules.rule_set import RuleSet
from tidegate.rules.sql.read import marks_of, section_as_stored
from tidegate.rules.sql.stored_rules import StoredRules, rows_of_rules
from tidegate.rules.sql.write import (
    delete_rule,
    rows_as_written,
    write_costs,
    write_document,
    write_lists,
    write_rule,
)
from tidegate.server.admin.bodies import ChangedRules
from tidegate.server.records.rule_versions import keep_what_others_wrote, put_into_force

if TYPE_CHECKING:
    from tidegate.rules import model
    from tidegate.rules.sql.read import Marks
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
    stored: StoredRules, rules: dict[str, tuple[Fields, Where]], comment: str | None
) -> Callable[[Change], tuple[ChangedRules, StoredRules]]:
    """Adds rules, or replaces those that have the same ids. Returns what writes them.

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
    proposed, compiled = _accepted(stored, "rules", data, given)
    for id in rules:
        (data[places[id]],) = section_as_stored(
            "rules", rows_as_written("rules", [proposed.rules[places[id]]])
        )
    part = _Part(stored, "rules", data, proposed, compiled)

    def write(change: Change) -> tuple[ChangedRules, StoredRules]:
        keep_what_others_wrote(change.connection, stored.plain, change.now)
        rows = rows_of_rules(change.connection)
        for id in rules:
            write_rule(change.connection, proposed.rules[places[id]], rows.get(id, []))
        done, after = part.put_into_force(change, comment)
        for id in rules:
            action = "rule.create" if id in created else "rule.update"
            change.record(action, f"rule:{id}", before=stored.rule(id), after=after.rule(id))
        return done.model_copy(update={"created": created, "updated": updated}), after

    return write


def remove_rule(
    stored: StoredRules, id: str, comment: str | None
) -> Callable[[Change], ChangedRules]:
    """Deletes a rule. Returns what writes that. Raises RulesError if something else needs it."""
    data = [rule for rule in stored.document.data.get("rules", []) if rule["id"] != id]
    part = _Part(stored, "rules", data, *_accepted(stored, "rules", data, {}))

    def write(change: Change) -> ChangedRules:
        keep_what_others_wrote(change.connection, stored.plain, change.now)
        delete_rule(change.connection, rows_of_rules(change.connection)[id])
        done, _ = part.put_into_force(change, comment)
        change.record("rule.delete", f"rule:{id}", before=stored.rule(id))
        return done.model_copy(update={"deleted": [id]})

    return write


def save_entries(
    stored: StoredRules,
    field: str,
    entries: list[Fields],
    given: dict[Where, Where],
    *,
    action: str,
    comment: str | None,
) -> Callable[[Change], ChangedRules]:
    """Replaces the entries of `allow`, `block` or `costs`. Returns what writes them.

    `given` maps the places of new entries in the document to their places in the request. Raises
    RulesError.
    """
    proposed, compiled = _accepted(stored, field, entries, given)
    written = section_as_stored(field, rows_as_written(field, getattr(proposed, field)))
    part = _Part(stored, field, written, proposed, compiled)

    def write(change: Change) -> ChangedRules:
        keep_what_others_wrote(change.connection, stored.plain, change.now)
        (write_costs if field == "costs" else write_lists)(change.connection, proposed)
        done, after = part.put_into_force(change, comment)
        gone, new = _differing(stored.plain.get(field, []), after.plain.get(field, []))
        change.record(action, field, before=gone, after=new)
        return done

    return write


def _differing(before: list[Fields], after: list[Fields]) -> tuple[list[Fields], list[Fields]]:
    """Returns both lists without what they have in common at their begin and at their end.

    A list of thousands of entries, to which as many are added one by one, would fill the disk.
    """
    least = min(len(before), len(after))
    same = next((i for i in range(least) if before[i] != after[i]), least)
    before, after = before[same:], after[same:]
    least -= same
    alike = next((i for i in range(least) if before[-1 - i] != after[-1 - i]), least)
    return before[: len(before) - alike], after[: len(after) - alike]


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
    if with_overrides:
        change.known = None  # its overrides are compared one by one
    stored = stored_or_none(change, source)
    if stored is not None:
        keep_what_others_wrote(change.connection, stored.plain, change.now)
    write_document(change.connection, rules, with_overrides=with_overrides)
    written = StoredRules.current(change.connection, source, change.known)
    done = _put_into_force(change, comment, written, _changes(stored, written))
    before = None if stored is None else {"etag": stored.etag}
    after = {"etag": done.etag, "version": done.version, "changes": done.changes}
    change.record(action, target, before=before, after=after)
    return done


def stored_or_none(change: Change, source: str) -> StoredRules | None:
    """Returns the rules of the tables, or None if they are not accepted."""
    try:
        return StoredRules.current(change.connection, source, change.known)
    except RulesError:
        return None


def _accepted(
    stored: StoredRules, field: str, items: list[Fields], given: dict[Where, Where]
) -> tuple[model.Rules, Compiled | None]:
    """Checks the rules with another list of rules, costs or entries. Raises RulesError.

    The second value is None if the overrides must be read again to compile them.
    """
    data = {**stored.document.data, field: items}
    data.pop("overrides", None)
    proposal = Proposal(data, given)
    proposal.kept = stored.rule_set
    rules = validate(proposal)
    try:
        return rules, compile_rules(proposal, rules)
    except StaleOverridesError:
        proposal.kept = None
        compile_rules(proposal, rules)
        return rules, None


class _Part:
    """A list of the rules in force, `field`, that is replaced by what a read would return."""

    def __init__(
        self,
        before: StoredRules,
        field: str,
        written: list[Fields],
        proposed: model.Rules,
        compiled: Compiled | None,
    ) -> None:
        self._before = before
        # None if the overrides must be read again once the part is written.
        self._after: StoredRules | None = None
        self._changes: list[str] = []
        if compiled is not None:
            self._after = _with_part(before, field, written, proposed, compiled)
            self._changes = _changes(before, self._after)

    def put_into_force(
        self, change: Change, comment: str | None
    ) -> tuple[ChangedRules, StoredRules]:
        """Adds a version, once the part is written. The overrides are those that were read."""
        before, after, changes = self._before, self._after, self._changes
        if after is None:
            after = StoredRules.current(change.connection, before.document.source)
            changes = _changes(before, after)
        known = before.document.marks
        return _put_into_force(change, comment, after, changes, known), after


def _with_part(
    before: StoredRules,
    field: str,
    written: list[Fields],
    proposed: model.Rules,
    compiled: Compiled,
) -> StoredRules:
    source = before.document.source
    document = Document({**before.document.data, field: written}, source, lambda where: None)
    document.data.pop("overrides", None)
    document.kept = before.rule_set
    document.overrides_mark = before.document.overrides_mark
    # Items are compared as they are written: the request may say the same in other words.
    same = before.document.data.get(field, [])
    known = getattr(before.model, field)
    changed = [i for i, item in enumerate(written) if i >= len(same) or item != same[i]]
    part = Document({field: [written[i] for i in changed]}, source, lambda where: None)
    items = list(known[: len(written)]) + [None] * (len(written) - len(known))
    for i, item in zip(changed, getattr(validate(part), field)):
        items[i] = item
    rules = proposed.model_copy(update={field: items})
    return StoredRules.accepted(document, rules, RuleSet._of(document, rules, compiled))


def _changes(before: StoredRules | None, after: StoredRules) -> list[str]:
    if before is None:
        return []
    # If the overrides stay, they are not among the fields.
    old, new = before.model, after.model
    if not (old.overrides and new.overrides):
        old = old.model_copy(update={"overrides": []})
        new = new.model_copy(update={"overrides": []})
    return differences(old, new)[:_MOST_CHANGES]


def _put_into_force(
    change: Change,
    comment: str | None,
    after: StoredRules,
    changes: list[str],
    known: Marks | None = None,
) -> ChangedRules:
    """Adds what was written as a version, and leaves it to be adopted after the commit.

    `known` are the marks of an instant since which no override has changed.
    """
    version = put_into_force(
        change.connection, after.plain, change.actor.name[:255], comment, change.now
    )
    change.adopts(after.rule_set, marks_of(change.connection, known))
    return ChangedRules(version=version, etag=after.etag, changes=changes)
