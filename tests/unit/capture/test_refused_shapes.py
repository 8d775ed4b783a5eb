"""One bad entry of the shapes file stops nothing else, and never removes a shape; a random model says what is live."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

import pytest

from flushtracker.capture.shapes.delayed_shapes import DelayedShapes
from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.errors import (
    ConfigError,
    FlushtrackerError,
    PostgresError,
    PostgresUnavailableError,
    ShapeError,
    combined,
    first_of,
)
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import read_shapes_file
from flushtracker.shapes.table_binding import TableBinding
from tests.support.scripted_source import LSN, NAME, TABLE, ScriptedTables, Source

LATER: Final = ("public", "later")
"""A table that the catalog has only at times."""


class PickyTables(ScriptedTables):
    """A catalog with two tables; it lacks those in ``missing``. ``failure`` is that of any query for shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[tuple[str, str]] = set()
        self.failure: PostgresError | None = None

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        if self.failure is not None:
            raise self.failure
        errors: dict[str, FlushtrackerError] = {}
        found = []
        for each in definitions:
            if each.table in self.missing:
                fact = f"there is no table {each.table[1]}"
                errors[each.id] = combined([ShapeError(f"{each.subject('table')}: {fact}"), ShapeError(f"and {fact}")])
            else:
                found.append((replace(each, primary_key=("id",)), self.binding(each.table)))
        if errors:
            raise first_of(errors)
        return found

    def binding(self, table: tuple[str, str]) -> TableBinding:
        return TABLE if table == NAME else replace(TABLE, oid=TABLE.oid + 1, table=LATER, partitions=())

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        return {oid: self.binding(NAME if oid == TABLE.oid else LATER) for oid in oids}


class FiledSource(Source):
    """A source whose shapes are those of a file in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shapes.yaml"
        self.delayed = DelayedShapes()
        super().__init__()
        self.tables = self.catalog = PickyTables()
        self.resume(SourceEntries(), LSN)
        self.subscriptions.begin_source()

    def resume(self, entries: SourceEntries, confirmed_lsn: int, delayed: DelayedShapes | None = None) -> None:
        super().resume(entries, confirmed_lsn, delayed or self.delayed)

    def take(self, text: str) -> None:
        """Write the file, and apply it as capture does."""
        self.path.write_text(text)
        shapes = read_shapes_file(self.path)
        self.subscriptions.apply_definitions(shapes.definitions, shapes.allow_removing, shapes.faults)

    def restart(self) -> None:
        """Start capture again, which applies the file."""
        self.delayed = DelayedShapes()
        self.resume(self.registered(), LSN)
        self.take(self.path.read_text())

    @property
    def live(self) -> dict[str, ShapeDefinition]:
        found = self.subscriptions.entries.shapes
        return {entry.definition.id: entry.definition for entry in found if entry.removed_at is None}

    @property
    def reasons(self) -> list[tuple[str | None, str]]:
        """What is refused, without the folder of the file."""
        shown = self.subscriptions.refused.shown
        return [(each.shape_id, each.reason.replace(f"{self.path.parent}/", "")) for each in shown]


def file_of(*entries: str) -> str:
    return "shapes:" + ("".join(f"\n  - {entry}" for entry in entries) or " []") + "\n"


A, B, C = (f"{{id: {each}, table: public.t}}" for each in "abc")


@pytest.fixture
def source(tmp_path: Path) -> FiledSource:
    source = FiledSource(tmp_path)
    source.take(file_of(A, B, C))
    assert source.live.keys() == {"a", "b", "c"}
    return source


def test_a_bad_shape_stops_neither_a_removal_nor_an_addition_nor_a_restart(source: FiledSource) -> None:
    """At night `add-shape` had left it in the file, and `remove-shape` then had no effect, nor had a restart."""
    source.catalog.missing = {LATER}
    source.take(file_of(A, B, "{id: bad, table: public.later}", "{id: d, table: public.t}"))
    assert source.live.keys() == {"a", "b", "d"}
    reasons = [
        ("bad", "shapes.yaml line 4: shape 'bad': there is no table later"),
        ("bad", "and there is no table later"),
    ]
    assert source.reasons == reasons
    assert source.subscriptions.refused.count == 1
    source.restart()
    assert source.live.keys() == {"a", "b", "d"}
    assert source.reasons == reasons


def test_a_shape_is_added_once_the_catalog_allows_it(source: FiledSource, caplog: pytest.LogCaptureFixture) -> None:
    """The file need not change: the table was created after the shape was defined."""
    caplog.set_level(logging.INFO, logger="flushtracker.capture.shapes.refused_shapes")
    source.catalog.missing = {LATER}
    source.take(file_of(A, B, C, "{id: late, table: public.later}"))
    source.subscriptions.add_waiting()
    assert source.live.keys() == {"a", "b", "c"}
    source.catalog.missing.clear()
    source.subscriptions.add_waiting()
    assert source.live.keys() == {"a", "b", "c", "late"}
    assert (source.reasons, source.subscriptions.refused.count) == ([], 0)
    found = [record for record in caplog.records if record.name == "flushtracker.capture.shapes.refused_shapes"]
    assert [record.levelname for record in found] == ["ERROR", "ERROR", "INFO"]


def test_a_live_shape_with_a_bad_definition_stays_as_it_is(source: FiledSource) -> None:
    """Whether the file itself, another entry or the registry contradicts it."""
    for entries in (
        [A, B, "{id: c, tabel: public.t}"],
        [A, B, "{id: c, table: public.t, where: id = '5'}"],
        [A, B, C, C],
        [A, B, "{id: c, table: public.t, depends_on: [nobody]}"],
    ):
        source.take(file_of(*entries))
        assert source.live.keys() == {"a", "b", "c"}
        assert source.live["c"].where is None
        assert [shape_id for shape_id, _ in source.reasons] == ["c"]
    source.take(file_of(A, B, C))
    assert source.reasons == []


def test_a_bad_entry_keeps_the_definition_of_a_shape_that_has_ended(source: FiledSource) -> None:
    """Only what the file no longer has is condensed: the next definition under the id is compared with it."""
    source.subscriptions.end_shapes({"c": "it cannot go on"})
    source.take(file_of(A, B, "{id: c, tabel: public.t}"))
    source.subscriptions.removed.condense(1 << 40)
    source.restart()
    source.take(file_of(A, B, "{id: c, table: public.t, where: id = '5'}"))
    assert "differs from its registered definition in where" in source.reasons[0][1]


def test_new_dependencies_close_no_cycle_with_those_that_a_refused_entry_keeps(source: FiledSource) -> None:
    """The file has no cycle: `a` no longer depends on `b` there. But its entry is refused, so it still does."""
    source.take(file_of("{id: a, table: public.t, depends_on: [b]}", B, C))
    source.take(file_of("{id: a, tabel: public.t}", "{id: b, table: public.t, depends_on: [a]}", C))
    assert (source.live["a"].depends_on, source.live["b"].depends_on) == (("b",), ())
    assert [shape_id for shape_id, _ in source.reasons] == ["a", "b"]
    assert source.reasons[1][1].endswith("a → b → a")
    source.restart()
    source.take(file_of(A, "{id: b, table: public.t, depends_on: [a]}", C))
    assert (source.live["a"].depends_on, source.live["b"].depends_on) == ((), ("a",))


def test_a_dependency_that_stays_because_its_change_is_refused_counts_as_well(source: FiledSource) -> None:
    """`b` keeps `c`, because `b` on `a` would be a cycle; so `c` on `b` would be another one."""
    source.take(file_of("{id: a, table: public.t, depends_on: [b]}", "{id: b, table: public.t, depends_on: [c]}", C))
    on_a, on_b = (f"{{id: {own}, table: public.t, depends_on: [{other}]}}" for own, other in ("ba", "cb"))
    source.take(file_of("{id: a, tabel: public.t}", on_a, on_b))
    assert {key: each.depends_on for key, each in source.live.items()} == {"a": ("b",), "b": ("c",), "c": ()}
    assert [shape_id for shape_id, _ in source.reasons] == ["a", "b", "c"]


def test_a_query_that_fails_for_all_new_shapes_does_not_prevent_a_removal(source: FiledSource) -> None:
    """But while the server cannot be reached at all, nothing is changed."""
    source.catalog.failure = PostgresUnavailableError("gone")
    with pytest.raises(PostgresUnavailableError):
        source.take(file_of(A, B, "{id: d, table: public.t}"))
    assert source.live.keys() == {"a", "b", "c"}
    source.catalog.failure = PostgresError("permission denied")
    source.take(file_of(A, B, "{id: d, table: public.t}"))
    assert source.live.keys() == {"a", "b"}
    assert source.reasons == [("d", "permission denied")]


def test_of_very_many_bad_entries_few_are_shown(source: FiledSource) -> None:
    """The status document and the log are bounded; the number is that of all."""
    source.take(file_of(A, B, C, *(f"{{id: bad{number}, tabel: t}}" for number in range(500))))
    assert source.subscriptions.refused.count == 500
    assert len(source.reasons) == 20


# The random model.

IDS: Final = "abcdefgh"


@dataclass(frozen=True)
class Entry:
    """An entry of a file as it was meant. ``shape_id`` is ``None`` if nobody can read it."""

    text: str
    shape_id: str | None
    meaning: tuple[tuple[str, str], str] | None
    """Table and condition, ``None`` if the entry is wrong."""


@dataclass
class PlainModel:
    """The definition: which shapes are live after a file was applied, entry by entry."""

    live: dict[str, tuple[tuple[str, str], str]] = field(default_factory=dict)
    gone: dict[str, tuple[tuple[str, str], str] | None] = field(default_factory=dict)
    """The ids that were used: ``None`` if the shape was removed, its meaning if it has ended."""

    def apply(self, entries: Sequence[Entry], missing: Collection[tuple[str, str]]) -> None:
        times = Counter(entry.shape_id for entry in entries)
        removed = {shape_id for shape_id in self.live if not times[shape_id] and not times[None]}
        if 2 * len(removed) > len(self.live):
            return
        for shape_id in removed:
            del self.live[shape_id]
            self.gone[shape_id] = None
        for entry in entries:
            if entry.shape_id is None or entry.meaning is None or times[entry.shape_id] > 1:
                continue
            if entry.shape_id not in {*self.live, *self.gone} and entry.meaning[0] not in missing:
                self.live[entry.shape_id] = entry.meaning


def random_entry(rng: Random) -> Entry:
    shape_id = rng.choice(IDS)
    table, where = rng.choice([NAME, NAME, NAME, LATER]), rng.choice(["1", "1", "1", "1", "2"])
    start, rest = f"{{id: {shape_id}, ", f"table: public.{table[1]}, where: id <> '{where}'"
    match rng.randrange(12):
        case 0:
            return Entry(f"{start}tabel: x, {rest}}}", shape_id, None)
        case 1:
            return Entry(f"{start}{rest}, columns: []}}", shape_id, None)
        case 2 if rng.random() < 0.3:
            unreadable = [f"{{{rest}}}", f"{{id: 7, {rest}}}", shape_id, "[]", f"{start}id: x, {rest}}}"]
            return Entry(rng.choice(unreadable), None, None)
        case _:
            return Entry(f"{start}{rest}}}", shape_id, (table, where))


class FileHistory:
    """Random edits of a file, good and bad, next to the plain model."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.model, self.source = Random(seed), PlainModel(), FiledSource(folder)  # noqa: S311  reproducible
        self.entries: list[Entry] = []
        self.is_applied = True
        self.source.path.write_text(file_of())

    def step(self) -> None:
        steps = (self._restart, self._alter_catalog, self._retry, self._break_file, self._end, self._condense)
        self.rng.choice((*steps, self._edit, self._edit))()

    def _restart(self) -> None:
        self._attempt(self.source.restart)

    def _alter_catalog(self) -> None:
        self.source.catalog.missing = {LATER} - self.source.catalog.missing
        self._attempt(self._take)

    def _retry(self) -> None:
        self.source.catalog.missing = set()
        if self.is_applied:
            self.source.subscriptions.add_waiting()
            self.model.apply(self.entries, ())

    def _break_file(self) -> None:
        text = self.source.path.read_text()
        with pytest.raises(ConfigError):
            self.source.take(self.rng.choice([text + "  - {id", "shape:\n" + text, "", text + "shapes: []\n", "x"]))
        self.source.path.write_text(text)

    def _end(self) -> None:
        for shape_id in self.rng.sample(sorted(self.source.live), min(1, len(self.source.live))):
            self.source.subscriptions.end_shapes({shape_id: "it cannot go on"})
            self.model.gone[shape_id] = self.model.live.pop(shape_id)

    def _condense(self) -> None:
        self.source.subscriptions.removed.condense(self.rng.choice([0, 1 << 40]))

    def _edit(self) -> None:
        kept = [entry for entry in self.entries if self.rng.random() < 0.9]
        self.entries = [*kept, *(random_entry(self.rng) for _ in range(self.rng.randint(0, 3)))]
        self.rng.shuffle(self.entries)
        self._attempt(self._take)

    def _take(self) -> None:
        self.source.take(file_of(*(entry.text for entry in self.entries)))

    def _attempt(self, apply: Callable[[], None]) -> None:
        self.is_applied = False
        try:
            apply()
        except ShapeError as error:
            assert "would remove" in str(error)  # noqa: PT017  everything else is refused alone
        else:
            self.is_applied = True
        self.model.apply(self.entries, self.source.catalog.missing)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_file_has_the_live_shapes_are_those_of_the_plain_model(seed: int, tmp_path: Path) -> None:
    """Also over restarts, with a catalog that changes, shapes that end, and files that are no YAML."""
    history = FileHistory(seed, tmp_path)
    source = history.source
    for _ in range(25):
        history.step()
        found = {key: (each.table, str(each.where)[-2:-1]) for key, each in source.live.items()}
        assert found == history.model.live
        source.subscriptions.router.check_invariants()
        assert source.subscriptions.router.shape_ids == history.model.live.keys()
