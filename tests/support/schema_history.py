"""Random histories of schemas, rows and capture, as data: a list of steps that depends on its seed alone.

What a step does never changes what the later ones are, so any part of a history can be replayed. A statement that
fails, as on a table that has another name by then, is as good a step as any.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from tests.support.schema_statements import (
    DELICATE,
    FIRST_ROWS,
    LAYOUTS,
    PUBLICATIONS,
    ROWS,
    SCHEMAS,
    Change,
    Layout,
    creation,
    removal,
)

Action: TypeAlias = Literal[
    "run", "open", "close", "renew", "remove", "start", "stop", "kill", "terminate", "acknowledge", "check"
]
TABLES: Final = 4
_SCHEMA_SHARE: Final = 0.6
_SCHEMA_CHANGES: Final = (0, 1, 1, 1, 1, 2, 6)
"""How many there may be on one table between two checks."""
_DELICATE_SHARE: Final = 0.1
_ROUNDS: Final = 5
_ENDINGS: Final = (*["commit"] * 4, "commit with savepoints", "rollback", "rollback with savepoints")
_KILLS: Final = (
    "before the registry's entries",
    "between the registry's entries and their effect",
    "between two events of a fragment",
    "after a fragment is queued",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    ``run``: the changes, each statement in a transaction of its own, or all of them in one that commits or not;
    ``open`` begins one in another session, which ``close`` ends. ``renew`` defines a shape of each kind for each table
    that has none, ``remove`` removes a table's. ``kill`` lets capture die at the point ``how``. ``check`` waits until
    capture has published everything, and then judges every shape.
    """

    action: Action
    changes: tuple[Change, ...] = ()
    how: str = ""

    def __str__(self) -> str:
        statements = [statement for change in self.changes for statement in change.statements]
        if self.action not in {"run", "open"}:
            return f"-- {self.action} {self.how}".rstrip()
        if self.action == "open":
            statements = ["-- in another session, until it is closed:", "BEGIN", *statements]
        elif self.how:
            last = "ROLLBACK" if self.how.startswith("rollback") else "COMMIT"
            statements = [f"-- {self.how}", "BEGIN", *statements, last]
        return "\n".join(line if line.startswith("--") else f"{line};" for line in statements)


@dataclass(frozen=True, slots=True)
class History:
    """A publication of all tables, of a schema or of single tables; tables and their layouts; and the steps."""

    seed: int
    publication: str
    layouts: tuple[Layout, ...]
    steps: tuple[Step, ...]
    is_process: bool = False
    """Whether capture runs in a process of its own, and is killed by SIGKILL."""

    def __str__(self) -> str:
        created = [
            f"{line};"
            for number, layout in enumerate(self.layouts)
            for line in creation(f"t{number}", layout, self.publication)
        ]
        first = f"-- seed {self.seed}, capture in a {'process' if self.is_process else 'thread'}"
        return "\n".join([first, f"{self.publication};", *created, *map(str, self.steps)])


def random_history(seed: int, *, rounds: int = _ROUNDS) -> History:
    """The history of a seed."""
    rng = random.Random(seed)  # noqa: S311  not for secrets
    publication = PUBLICATIONS[seed % len(PUBLICATIONS)]
    layouts = tuple(rng.choice(LAYOUTS) for _ in range(TABLES))
    steps = [_rows(f"t{number}") for number in range(TABLES)]
    current = list(layouts)
    for _ in range(rounds):
        steps += _round(rng, publication, current)
    steps += _last_steps(publication)
    return History(seed, publication, layouts, tuple(steps), is_process=seed % 15 == 7)


def _round(rng: random.Random, publication: str, layouts: list[Layout]) -> Iterator[Step]:
    """Some changes, and what happens to capture meanwhile; then a quiet moment, with capture running."""
    for number in rng.sample(range(TABLES), rng.choice([0, 1, 1, 2])):
        layouts[number] = rng.choice(LAYOUTS)
        yield _created_again(f"t{number}", layouts[number], publication)
    body = [step for number, layout in enumerate(layouts) for step in _changes(rng, f"t{number}", layout)]
    rng.shuffle(body)
    if rng.random() < _DELICATE_SHARE:
        pool = [change for change in DELICATE if change.suits(publication)]
        change = replace(rng.choice(pool).on(_table(rng), 0), table="")
        body.insert(rng.randrange(len(body)), Step("run", (change,)))
    steps = [Step("renew"), _rows(_table(rng)), *_with_open(rng, body)]
    if rng.random() < 0.6:
        step = rng.choice([Step("stop"), Step("stop"), _kill(rng), Step("terminate"), Step("terminate")])
        place = rng.randrange(len(steps) + 1)
        steps.insert(place, step)
        if step.action != "terminate":
            steps.insert(rng.randrange(place + 1, len(steps) + 1), Step("start"))
    yield from steps
    yield Step("check")
    if rng.random() < 0.15:
        yield Step("acknowledge")
    if rng.random() < 0.1:
        yield Step("remove", how=_table(rng))


def _last_steps(publication: str) -> Iterator[Step]:
    """Schema changes that every shape must survive, and rows after them: no history has only shapes that end."""
    last: tuple[tuple[str, Layout, str], ...] = (
        ("t0", "plain", "ALTER TABLE t0 ADD n99 int"),
        ("t1", "halves", "CREATE TABLE t1_c PARTITION OF t1 FOR VALUES FROM (100) TO (200)"),
    )
    for table, layout, _ in last:
        yield _created_again(table, layout, publication)
    yield Step("renew")
    for table, _, statement in last:
        yield Step("run", (Change((statement,), table=table),))
        yield _rows(table)
    yield Step("check")


def _table(rng: random.Random) -> str:
    return f"t{rng.randrange(TABLES)}"


def _created_again(table: str, layout: Layout, publication: str) -> Step:
    statements = (removal(table), *creation(table, layout, publication))
    return Step("run", (Change(statements, frozenset(), table=table),))


def _rows(table: str) -> Step:
    return Step("run", (FIRST_ROWS.on(table, 0),))


def _changes(rng: random.Random, table: str, layout: Layout) -> Iterator[Step]:
    """The changes of one table in a round, some of them in one transaction."""
    rows = [change for change in ROWS if change.suits(layout)]
    schemas = [change for change in SCHEMAS if change.suits(layout)]
    # Half of the schema changes are those that only such a table can have: the fewer of them, the more often each.
    pools = [schemas, [change for change in schemas if change.only]]
    # Mostly one of them, as another would end the shapes that the first was to end.
    left = rng.choice(_SCHEMA_CHANGES)
    for _ in range(rng.randint(1, 4)):
        count = rng.choice([1, 1, 1, 2, 3])
        chosen = []
        for _ in range(count):
            pool = rows
            if left and rng.random() < _SCHEMA_SHARE:
                pool, left = rng.choice(pools), left - 1
            chosen.append(rng.choice(pool).on(table, rng.randint(0, 19)))
        how = ""
        if (count > 1 or len(chosen[0].statements) > 1) and rng.random() < 0.75:
            how = rng.choice(_ENDINGS)
        yield Step("run", tuple(chosen), how)


def _with_open(rng: random.Random, body: Sequence[Step]) -> list[Step]:
    """The steps, with a transaction of another session around some of them; shapes are added inside one of rows."""
    steps = list(body)
    if rng.random() < 0.3 and steps:
        begin = rng.randrange(len(steps))
        end = rng.randrange(begin, len(steps)) + 1
        pool = ROWS if (only_rows := rng.random() < 0.6) else SCHEMAS
        table = _table(rng)
        changes = tuple(rng.choice(pool).on(table, rng.randint(0, 19)) for _ in range(rng.randint(1, 2)))
        # New shapes on the very table, right before the commit.
        renewed = [Step("remove", how=table), Step("renew")] if only_rows else []
        inside = [*steps[begin:end], *renewed]
        ending = rng.choice(["commit", "commit", "rollback"])
        steps[begin:end] = [Step("open", changes, ending), *inside, Step("close", how=ending)]
    return steps


def _kill(rng: random.Random) -> Step:
    return Step("kill", how=f"{rng.choice(_KILLS)}/{rng.choice([0, 0, 1, 2, 5])}")
