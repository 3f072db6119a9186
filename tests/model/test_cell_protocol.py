"""The protocol of a cell (table.h), by all interleavings of a few actors, some of which die.

A world is the cells that one group of keys may have, and the actors. A move is one atomic
instruction of one actor: a read of a key or of a state, or a compare-and-swap of either. Every
reachable world is visited once. What is modelled is Table::FindOrClaim, Claim and Update:

    cells    (name, state): a name is (key, version, mark), a state is ("fresh",), ("idle",),
             ("units", n) or ("claim", by, key)
    hit      look through the cells; charge the key where it is and raise the mark of its name,
             else claim a cell and enter it
    death    at any instruction, of as many actors as a scenario says

Time is not modelled. Instead a claim is stale as soon as its owner is dead, and, in the scenarios
that say so, at any moment: that is an owner who was held up for longer than the time-out. There
versions would grow without end, so actors begin anew only so many times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest

Name = tuple[str, int, int]
State = tuple[object, ...]
Cell = tuple[Name, State]
Cells = tuple[Cell, ...]

NO_NAME: Name = ("", 0, 0)
EMPTY: Cell = (NO_NAME, ("fresh",))
VERSIONS = 8


class Actor(NamedTuple):
    key: str
    step: str = "look"
    at: int = 0  # the cell it looks at
    seen: State = ()  # what it read there
    name: Name = NO_NAME  # the name that it read there, or has written
    spare: tuple[int, State] | None = None  # a cell it could claim
    left: int = -1  # how often it may begin anew; negative without bound


class World(NamedTuple):
    cells: Cells
    actors: tuple[Actor, ...]
    deaths: int


@dataclass(frozen=True)
class Scenario:
    keys: tuple[str, ...]
    cells: Cells
    deaths: int = 0
    hold_ups: bool = False


def named(cells: Cells, at: int, name: Name) -> Cells:
    return (*cells[:at], (name, cells[at][1]), *cells[at + 1 :])


def stated(cells: Cells, at: int, state: State) -> Cells:
    return (*cells[:at], (cells[at][0], state), *cells[at + 1 :])


def name_over(before: Name, key: str) -> Name:
    return key, (before[1] + 1) % VERSIONS, 0


def again(actor: Actor) -> Actor:
    if actor.left == 0:
        return Actor(actor.key, step="gone")
    return Actor(actor.key, left=actor.left - 1 if actor.left > 0 else -1)


def is_stale(scenario: Scenario, world: World, claim: State) -> bool:
    owner = world.actors[claim[1]]  # type: ignore[call-overload]
    return owner.step == "dead" or scenario.hold_ups


def look(scenario: Scenario, world: World, me: int) -> tuple[Cells, Actor]:
    """One cell of the walk, as in FindOrClaim: its key, and in a second step its state."""
    actor, cells = world.actors[me], world.cells
    if actor.at == len(cells):
        return cells, chosen(actor)
    name, state = cells[actor.at]
    if actor.step == "look":
        return cells, actor._replace(step="read", name=name)
    if actor.step == "read":
        if actor.name[0] != actor.key:
            return cells, considered(scenario, world, actor, state)
        return cells, actor._replace(step="confirm", seen=state)
    # It was this key's a moment ago; is it still?
    if name[0] != actor.key or state != actor.seen:
        return cells, again(actor)
    if actor.seen[0] == "claim":
        if is_stale(scenario, world, actor.seen):
            return cells, chosen(actor._replace(spare=(actor.at, actor.seen)))
        return cells, again(actor)
    return cells, actor._replace(step="charge")


def considered(scenario: Scenario, world: World, actor: Actor, state: State) -> Actor:
    onward = actor._replace(step="look", at=actor.at + 1, name=NO_NAME)
    mine = (actor.at, state)
    if state[0] == "claim":
        if is_stale(scenario, world, state):
            return onward if actor.spare else onward._replace(spare=mine)
        return again(actor) if state[2] == actor.key else onward
    if actor.name == NO_NAME and state == ("fresh",):
        return chosen(actor if actor.spare else actor._replace(spare=mine))
    if actor.spare is None and state in (("fresh",), ("idle",)):
        return onward._replace(spare=mine)
    return onward


def chosen(actor: Actor) -> Actor:
    if actor.spare is None:
        return again(actor)
    at, seen = actor.spare
    return actor._replace(step="claim", at=at, seen=seen, spare=None)


def enter(world: World, me: int) -> tuple[Cells, Actor]:
    """Table::Claim and the first Replace()."""
    actor, cells = world.actors[me], world.cells
    at = actor.at
    name, state = cells[at]
    claim = ("claim", me, actor.key)
    if actor.step == "claim":
        if state != actor.seen:
            return cells, again(actor)
        return stated(cells, at, claim), actor._replace(step="read name")
    if actor.step == "read name":
        return cells, actor._replace(step="still mine", name=name)
    if actor.step == "still mine":
        return cells, actor._replace(step="write name") if state == claim else again(actor)
    if actor.step == "write name":
        if name != actor.name:  # its mark, or all of it
            return cells, actor._replace(step="read name")
        mine = name_over(name, actor.key)
        return named(cells, at, mine), actor._replace(step="other 0", name=mine)
    if actor.step.startswith("other "):
        other = int(actor.step[6:])
        if other == len(cells):
            return cells, actor._replace(step="own")
        if other != at and cells[other][0][0] == actor.key:
            return cells, actor._replace(step="give up")
        last = other != at and cells[other] == EMPTY
        return cells, actor._replace(step="own" if last else f"other {other + 1}")
    if actor.step == "give up":
        if name != actor.name:
            same = name[:2] == actor.name[:2]
            return cells, actor._replace(name=name) if same else again(actor)
        return named(cells, at, name_over(name, "nobody")), actor._replace(step="give back")
    if actor.step == "give back":
        return (stated(cells, at, ("fresh",)) if state == claim else cells), again(actor)
    assert actor.step == "own"
    if state != claim:
        return cells, again(actor)
    return stated(cells, at, ("units", 1)), actor._replace(step="done")


def charge(world: World, me: int) -> tuple[Cells, Actor]:
    actor, cells = world.actors[me], world.cells
    if cells[actor.at][1] != actor.seen:
        return cells, again(actor)
    units = actor.seen[1] if actor.seen[0] == "units" else 0
    state = ("units", units + 1)  # type: ignore[operator]
    return stated(cells, actor.at, state), actor._replace(step="read mark")


def remark(world: World, me: int) -> tuple[Cells, Actor]:
    """Table::Remark, by when the cell may be another key's, or the same key's once more."""
    actor, cells = world.actors[me], world.cells
    name = cells[actor.at][0]
    if actor.step == "read mark":
        if name[0] != actor.key or name[2] == 1:
            return cells, actor._replace(step="done")
        return cells, actor._replace(step="write mark", name=name)
    if name != actor.name:
        return cells, actor._replace(step="read mark")
    return named(cells, actor.at, (*name[:2], 1)), actor._replace(step="done")


def moves(scenario: Scenario, world: World) -> list[World]:
    worlds = []
    for me, actor in enumerate(world.actors):
        if actor.step in ("done", "dead", "gone"):
            continue
        if actor.step in ("look", "read", "confirm"):
            cells, after = look(scenario, world, me)
        elif actor.step == "charge":
            cells, after = charge(world, me)
        elif actor.step.endswith(" mark"):
            cells, after = remark(world, me)
        else:
            cells, after = enter(world, me)
        actors = (*world.actors[:me], after, *world.actors[me + 1 :])
        worlds.append(World(cells, actors, world.deaths))
        if world.deaths:
            dead = (*world.actors[:me], actor._replace(step="dead"), *world.actors[me + 1 :])
            worlds.append(World(world.cells, dead, world.deaths - 1))
    return worlds


def charged(world: World, key: str) -> list[int]:
    """The units of each cell that the key owns."""
    return [
        state[1]  # type: ignore[misc]
        for name, state in world.cells
        if name[0] == key and state[0] == "units"
    ]


def explore(scenario: Scenario) -> tuple[set[World], dict[World, list[World]]]:
    left = 2 if scenario.hold_ups else -1
    actors = tuple(Actor(key, left=left) for key in scenario.keys)
    start = World(scenario.cells, actors, scenario.deaths)
    graph: dict[World, list[World]] = {}
    todo = [start]
    while todo:
        world = todo.pop()
        if world in graph:
            continue
        graph[world] = moves(scenario, world)
        todo.extend(graph[world])
    return {world for world, after in graph.items() if not after}, graph


TWO = (EMPTY, EMPTY)
OLD: Cells = ((("old", 3, 0), ("idle",)), EMPTY)
FULL: Cells = ((("old", 3, 0), ("idle",)), (("aged", 5, 0), ("idle",)))

EXACT = {
    "one key into an empty group": Scenario(("x", "x", "x"), TWO),
    "one key, and one dies": Scenario(("x", "x", "x"), TWO, deaths=1),
    "one key, and two die": Scenario(("x", "x", "x"), TWO, deaths=2),
    "two keys want one cell": Scenario(("x", "x", "y"), TWO, deaths=1),
    "an idle cell before an empty one": Scenario(("x", "x"), OLD, deaths=1),
    "three into idle cells": Scenario(("x", "x", "y"), FULL),
    "three into idle cells, one dies": Scenario(("x", "x", "x"), FULL, deaths=1),
    "the idle key comes back": Scenario(("x", "old"), OLD, deaths=1),
    "it comes back to a full group": Scenario(("x", "old", "old"), FULL, deaths=1),
}
HELD_UP = {
    "one key": Scenario(("x", "x"), TWO, hold_ups=True),
    "one key, idle cells": Scenario(("x", "x"), FULL, hold_ups=True),
    "two keys, idle cells": Scenario(("x", "y"), FULL, hold_ups=True),
    "the idle key comes back": Scenario(("x", "old"), FULL, hold_ups=True),
    "one cell for two": Scenario(("x", "old"), FULL[:1], hold_ups=True),
}


def check_charges(scenario: Scenario, world: World) -> None:
    """Admitted units are charged, in one cell."""
    for key in set(scenario.keys):
        cells = charged(world, key)
        done = sum(a.key == key and a.step == "done" for a in world.actors)
        assert len(cells) <= 1, world
        assert sum(cells) >= done, world


@pytest.mark.parametrize("name", EXACT)
def test_nothing_is_lost_and_nobody_waits_for_ever(name: str) -> None:
    scenario = EXACT[name]
    ends, graph = explore(scenario)
    assert ends
    for world in graph:
        check_charges(scenario, world)
    for world in ends:
        assert all(actor.step in ("done", "dead") for actor in world.actors), world
    # From every world there is a way to the end: no one depends on the dead.
    before: dict[World, list[World]] = {}
    for world, after in graph.items():
        for other in after:
            before.setdefault(other, []).append(world)
    reached = set(ends)
    todo = list(ends)
    while todo:
        for world in before.get(todo.pop(), []):
            if world not in reached:
                reached.add(world)
                todo.append(world)
    assert len(reached) == len(graph)


@pytest.mark.parametrize("name", HELD_UP)
def test_who_is_held_up_beyond_the_time_out_takes_nothing_away(name: str) -> None:
    scenario = HELD_UP[name]
    _, graph = explore(scenario)
    for world in graph:
        check_charges(scenario, world)


def breaks(scenario: Scenario) -> bool:
    _, graph = explore(scenario)
    try:
        for world in graph:
            check_charges(scenario, world)
    except AssertionError:
        return True
    return False


def test_the_look_for_a_second_cell_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = enter

    def without_the_look(world: World, me: int) -> tuple[Cells, Actor]:
        cells, after = right(world, me)
        return cells, after._replace(step="own") if after.step == "other 0" else after

    scenario = Scenario(("x", "x", "old"), FULL)
    assert not breaks(scenario)
    monkeypatch.setitem(globals(), "enter", without_the_look)
    assert breaks(scenario)


def test_versions_of_names_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "VERSIONS", 1)
    assert any(breaks(scenario) for scenario in HELD_UP.values())
