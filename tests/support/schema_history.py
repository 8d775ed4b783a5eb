"""Random histories of schemas, rows and capture, as data: a list of steps that depends on its seed alone.

What a step does never changes what the later ones are, so any part of a history can be replayed. A statement that
fails, as on a table that has another name by then, is as good a step as any.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from tests.support.schema_changes import SCHEMAS, SURVIVABLE
from tests.support.schema_publications import DELICATE, PUBLISHED, UNPUBLISHED
from tests.support.schema_statements import (
    FIRST_ROWS,
    MANAGED,
    ROWS,
    Change,
    Layout,
    creation,
    layouts,
    publications,
    removal,
)

Action: TypeAlias = Literal[
    "run",
    "open",
    "more",
    "close",
    "renew",
    "snapshot",
    "remove",
    "start",
    "stop",
    "kill",
    "terminate",
    "acknowledge",
    "check",
]
TABLES: Final = 4
_SCHEMA_SHARE: Final = 0.6
_SCHEMA_CHANGES: Final = (0, 1, 1, 1, 1, 2, 6)
"""How many there may be on one table between two checks."""
_DELICATE_SHARE: Final = 0.15
_REPUBLISHED_SHARE: Final = 0.15
_ROUNDS: Final = 5
_ENDINGS: Final = (*["commit"] * 4, "commit with savepoints", "rollback", "rollback with savepoints")
_KILLS: Final = (
    "before the registry's entries",
    "between the registry's entries and their effect",
    "between two events of a fragment",
    "after a fragment is queued",
)
_PUBLICATION_KILLS: Final = ("before the publication is altered", "between the publication and the registry")
_REMOVED_SHARE: Final = 0.1
_REMOVED_SHARE_MANAGED: Final = 0.4


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    ``run``: the changes, each statement in a transaction of its own, or all of them in one that commits or not;
    ``open`` begins one in another ``session``, in which ``more`` is done until ``close`` ends it. ``renew`` defines a
    shape of each kind for each table that has none, ``remove`` removes a table's. ``snapshot`` takes the snapshot of
    each shape whose start is visible by then; ``check`` takes the others. ``kill`` lets capture die at the point
    ``how``. ``check`` waits until capture has published everything, and then judges every shape.
    """

    action: Action
    changes: tuple[Change, ...] = ()
    how: str = ""
    session: int = 0

    def __str__(self) -> str:
        statements = [statement for change in self.changes for statement in change.statements]
        if self.action in {"open", "more"}:
            begin = ["BEGIN"] if self.action == "open" else []
            statements = [f"-- in session {self.session}, until it is closed:", *begin, *statements]
        elif self.action != "run":
            where = f"session {self.session} " if self.action == "close" else ""
            return f"-- {self.action} {where}{self.how}".rstrip()
        elif self.how:
            last = "ROLLBACK" if self.how.startswith("rollback") else "COMMIT"
            statements = [f"-- {self.how}", "BEGIN", *statements, last]
        return "\n".join(line if line.startswith("--") else f"{line};" for line in statements)


@dataclass(frozen=True, slots=True)
class History:
    """A publication of all tables, of a schema, of single ones, or a managed one; tables and layouts; and the steps."""

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


def random_history(seed: int, version: int, *, rounds: int = _ROUNDS) -> History:
    """The history of a seed, for a server of this version."""
    rng = random.Random(seed)  # noqa: S311  not for secrets
    maker = _Maker(rng, rng.choice(publications(version)), version)
    steps = [_rows(f"t{number}") for number in range(TABLES)]
    first = tuple(maker.layouts)
    for _ in range(rounds):
        steps += maker.round()
    steps += _last_steps(maker.publication, seed)
    return History(seed, maker.publication, first, tuple(steps), is_process=seed % 15 == 7)


class _Maker:
    """Makes the rounds of a history, whose tables have these layouts by now."""

    def __init__(self, rng: random.Random, publication: str, version: int) -> None:
        self._rng = rng
        self._version = version
        self.publication = publication
        self.layouts = [rng.choice(layouts(version)) for _ in range(TABLES)]

    def round(self) -> Iterator[Step]:
        """Some changes, and what happens to capture meanwhile; then a quiet moment, with capture running."""
        rng = self._rng
        for number in rng.sample(range(TABLES), rng.choice([0, 1, 1, 2])):
            self.layouts[number] = rng.choice(layouts(self._version))
            yield _created_again(f"t{number}", self.layouts[number], self.publication)
        body = [step for number, layout in enumerate(self.layouts) for step in self._changes(f"t{number}", layout)]
        rng.shuffle(body)
        if rng.random() < _DELICATE_SHARE:
            delicate = self._delicate(DELICATE, self._table())
            body.insert(rng.randrange(len(body)), Step("run", (delicate,), rng.choice(["", "commit"])))
        if rng.random() < _REPUBLISHED_SHARE and self._can_republish():
            body = self._mixed(body, self._republished())
        steps = [Step("renew"), _rows(self._table()), *self._with_open(body)]
        if rng.random() < 0.6:
            step = rng.choice([Step("stop"), Step("stop"), self._kill(), Step("terminate"), Step("terminate")])
            place = rng.randrange(len(steps) + 1)
            steps.insert(place, step)
            if step.action != "terminate":
                steps.insert(rng.randrange(place + 1, len(steps) + 1), Step("start"))
        if rng.random() < 0.6:
            steps.insert(rng.randrange(len(steps) + 1), Step("snapshot"))
        yield from steps
        yield Step("check")
        if rng.random() < 0.15:
            yield Step("acknowledge")
        if rng.random() < (_REMOVED_SHARE_MANAGED if self.publication == MANAGED else _REMOVED_SHARE):
            yield Step("remove", how=self._table())

    def _changes(self, table: str, layout: Layout) -> Iterator[Step]:
        """The changes of one table in a round, some of them in one transaction."""
        rng = self._rng
        rows = [change for change in ROWS if change.suits(layout, self._version)]
        schemas = [change for change in SCHEMAS if change.suits(layout, self._version)]
        # Half of the schema changes are those that only such a table can have: the fewer of them, the more often each.
        pools = [schemas, [change for change in schemas if change.only] or schemas]
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

    def _with_open(self, body: Sequence[Step]) -> list[Step]:
        """The steps, with a transaction of another session around some; shapes are added inside one of rows."""
        rng, steps = self._rng, list(body)
        if rng.random() < 0.3 and steps:
            begin = rng.randrange(len(steps))
            end = rng.randrange(begin, len(steps)) + 1
            table = self._table()
            if only_rows := rng.random() < 0.6:
                changes = self._some_rows(table)
            else:
                changes = tuple(rng.choice(SCHEMAS).on(table, rng.randint(0, 19)) for _ in range(rng.randint(1, 2)))
            # New shapes on the very table, right before the commit.
            renewed = [Step("remove", how=table), Step("renew")] if only_rows else []
            inside = [*steps[begin:end], *renewed]
            ending = rng.choice(["commit", "commit", "rollback"])
            steps[begin:end] = [Step("open", changes, ending, 1), *inside, Step("close", how=ending, session=1)]
        return steps

    def _republished(self) -> list[Step]:
        """A transaction that stays open while its table leaves the publication, or comes in, and gets new shapes."""
        rng, table = self._rng, self._table()
        out = Step("run", (self._delicate(UNPUBLISHED, table),))
        back = Step("run", (self._delicate(PUBLISHED, table),))
        begin = Step("open", self._some_rows(table), "commit", 2)
        more = Step("more", self._some_rows(table), session=2)
        first = [out, begin] if rng.random() < 0.7 else [begin, out]
        between = [more] if rng.random() < 0.3 else []
        shapes = [Step("renew")] if rng.random() < 0.8 else [Step("remove", how=table), Step("renew")]
        snapshot = [Step("snapshot")] if rng.random() < 0.7 else []
        return [*first, *between, back, *shapes, *snapshot, more, Step("close", how="commit", session=2)]

    def _can_republish(self) -> bool:
        return any(change.suits(self.publication, self._version) for change in PUBLISHED)

    def _mixed(self, steps: Sequence[Step], others: Sequence[Step]) -> list[Step]:
        """Both, each in its order; mostly the others directly after each other."""
        mixed, place = list(steps), self._rng.randrange(len(steps) + 1)
        for other in others:
            mixed.insert(place, other)
            place += 1
            if self._rng.random() < 0.2:
                place = self._rng.randrange(place, len(mixed) + 1)
        return mixed

    def _some_rows(self, table: str) -> tuple[Change, ...]:
        pool = [change for change in ROWS if not change.only]
        return tuple(self._rng.choice(pool).on(table, self._rng.randint(0, 19)) for _ in range(self._rng.randint(1, 2)))

    def _delicate(self, changes: Sequence[Change], table: str) -> Change:
        """One of the changes that concern the publication, and so perhaps every table."""
        pool = [change for change in changes if change.suits(self.publication, self._version)]
        return replace(self._rng.choice(pool).on(table, self._rng.randint(0, 19)), table="")

    def _kill(self) -> Step:
        points = _KILLS + (_PUBLICATION_KILLS * 2 if self.publication == MANAGED else ())
        return Step("kill", how=f"{self._rng.choice(points)}/{self._rng.choice([0, 0, 1, 2, 5])}")

    def _table(self) -> str:
        return f"t{self._rng.randrange(TABLES)}"


def _last_steps(publication: str, seed: int) -> Iterator[Step]:
    """Schema changes that shapes must survive, others for each seed, and rows after them.

    So no history has only shapes that end, and a few dozen have every such change, alone and on a table of its own.
    """
    number = 2 * seed % len(SURVIVABLE)
    last = [("t0", SURVIVABLE[number]), ("t1", SURVIVABLE[(number + 1) % len(SURVIVABLE)])]
    for change in PUBLISHED:
        if change.suits(publication, 0):
            yield Step("run", (replace(change.on("t0", 0), table=""),))
    for table, change in last:
        fitting: tuple[Layout, ...] = ("plain", "generated", "halves")
        layout = next(layout for layout in fitting if change.suits(layout, 0))
        yield _created_again(table, layout, publication)
    # Until capture has found that the tables were dropped, their shapes are live, and so not renewed.
    yield from (Step("check"), Step("renew"))
    for table, change in last:
        yield Step("run", (change.on(table, 99),))
        yield _rows(table)
    yield Step("check")


def _created_again(table: str, layout: Layout, publication: str) -> Step:
    statements = (removal(table), *creation(table, layout, publication))
    return Step("run", (Change(statements, frozenset(), table=table, template=f"created again: {layout}"),))


def _rows(table: str) -> Step:
    return Step("run", (FIRST_ROWS.on(table, 0),))
