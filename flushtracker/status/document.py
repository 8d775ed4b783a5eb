"""The base of all documents of ``/status.json``.

Each object of a document is a struct. A field's ``Annotated`` has its meaning and its metric: its JSON
(:meth:`StatusObject.to_json`), the metrics (:mod:`flushtracker.status.http.metrics`), ``docs/schemas`` and the
tables of ``docs/status.md`` are derived from that. LSNs are text in JSON and numbers here, times are milliseconds since
1970, and ``None`` means not known yet unless the field says otherwise.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta, Struct, structs

from flushtracker.wal.lsn import format_lsn, parse_lsn

VERSION: Final = 1

if TYPE_CHECKING:
    Lsn: TypeAlias = int
else:

    class Lsn(int):
        """The type of a field that is text in JSON; any ``int`` may be its value."""


Natural: TypeAlias = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
"""Never negative, by the schema. Readers do not enforce it, because a clock may be set back."""
Sample: TypeAlias = int | float | None


class FieldMetric(NamedTuple):
    """The metric of a field; ``sample`` computes its value from the field's value and the current time in milliseconds.

    A value of ``None`` gives no sample. Fields with the same ``name`` are one family, and have different ``labels``.
    """

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    sample: Callable[[Any, int], Sample]
    labels: Mapping[str, str]


def about(text: str, *, most: int | None = None) -> Meta:
    """The meaning of a field, as in docs/status.md; ``most`` limits the items of a list."""
    return Meta(description=text, extra_json_schema=None if most is None else {"maxItems": most})


def gauge(
    name: str, text: str, metric_text: str = "", *, value: Callable[[Any], Sample] | None = None, **labels: str
) -> Meta:
    """A field that is a gauge, in seconds if its name says so; ``metric_text`` if the metric means something else.

    ``value`` computes the metric's value from the field's, if that is not a number.
    """

    def sample(found: Any, _: int) -> Sample:
        if value is not None:
            return value(found)
        return None if found is None else found / (1_000 if name.endswith("_seconds") else 1)

    return _with_metric(FieldMetric(name, "gauge", metric_text or text, sample, labels), text)


def counter(name: str, text: str, metric_text: str = "", **labels: str) -> Meta:
    """A sum since the program's start, in seconds if its name says so; its sample is called ``<name>_total``."""
    divisor = 1_000 if name.endswith("_seconds") else 1

    def sample(value: Any, _: int) -> Sample:
        return value / divisor if divisor > 1 else value  # type: ignore[no-any-return]

    return _with_metric(FieldMetric(name, "counter", metric_text or text, sample, labels), text)


def age(name: str, text: str, metric_text: str = "") -> Meta:
    """A time since which something lasts; its metric is the duration, 0 for ``None``."""

    def sample(since_ms: int | None, now_ms: int) -> Sample:
        return 0 if since_ms is None else max(now_ms - since_ms, 0) / 1_000

    metric_text = metric_text or text.replace("since when", "for how long", 1).replace("`null`", "0")
    return _with_metric(FieldMetric(name, "gauge", metric_text, sample, {}), text)


def _with_metric(metric: FieldMetric, text: str) -> Meta:
    return Meta(description=text, extra={"metric": metric})


class StatusObject(Struct, frozen=True):
    """An object of a document."""

    def to_json(self) -> dict[str, Any]:
        """The object, including described properties."""
        return {each.key: _json(getattr(self, each.name), is_lsn=each.is_lsn) for each in described(type(self))}


class Document(StatusObject, frozen=True, tag_field="program"):
    """A program's document; its tag is the program's name."""

    at_ms: Annotated[Natural, about("when the program made this document")]
    started_at_ms: Annotated[
        Natural, gauge("start_timestamp_seconds", "when the program started; the sums count from then")
    ]

    @property
    def program(self) -> str:
        return str(self.__struct_config__.tag)

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, "program": self.program, **StatusObject.to_json(self)}


class Described(NamedTuple):
    """A field, or a described property: its ``key`` in JSON, and the kind of the objects in it, if it has any."""

    name: str
    key: str
    text: str
    metric: FieldMetric | None
    inner: type[StatusObject] | None
    is_list: bool
    is_lsn: bool


@cache
def described(kind: type[StatusObject]) -> tuple[Described, ...]:
    """All fields of an object, then its described properties."""
    return tuple(_described(name, key, hint) for name, key, hint in _hints(kind))


def _hints(kind: type[StatusObject]) -> Iterator[tuple[str, str, Any]]:
    for field in structs.fields(kind):
        yield field.name, field.encode_name, field.type
    for name, each in vars(kind).items():
        hint = get_type_hints(each.fget, include_extras=True)["return"] if isinstance(each, property) else None
        if get_origin(hint) is Annotated:
            yield name, name, hint


def _described(name: str, key: str, hint: Any) -> Described:
    meta, classes = hint.__metadata__[-1], list(_classes(hint))
    inner = next((each for each in classes if issubclass(each, StatusObject)), None)
    metric = None if meta.extra is None else meta.extra["metric"]
    return Described(name, key, meta.description, metric, inner, tuple in classes, Lsn in classes)


def _classes(hint: Any) -> Iterator[type]:
    found = get_origin(hint) or hint
    if isinstance(found, type):
        yield found
    for each in get_args(hint):
        yield from _classes(each)


def _json(value: Any, *, is_lsn: bool) -> Any:
    if isinstance(value, StatusObject):
        return value.to_json()
    if isinstance(value, tuple):
        return [_json(each, is_lsn=is_lsn) for each in value]
    return lsn_to_json(value) if is_lsn else value


def lsn_to_json(lsn: int | None) -> str | None:
    return None if lsn is None else format_lsn(lsn)


def lsn_from_json(kind: Any, text: Any) -> Any:
    """The hook of ``msgspec`` for an LSN; raises ``ValueError`` or ``TypeError`` for anything else."""
    if kind is not Lsn:
        raise TypeError(f"{kind} is not a type of a document")
    return kind(parse_lsn(text))


replace: Final = structs.replace
"""A copy with other values."""


_MOST: Final = 500


def bounded(text: str) -> str:
    """The text, truncated to 500 characters: a library's error may contain a whole response.

    >>> bounded("x" * 501) == "x" * 499 + "…", bounded("x" * 500) == "x" * 500
    (True, True)
    """
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"
