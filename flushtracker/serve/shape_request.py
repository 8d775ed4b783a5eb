"""``ShapeRequest``: the parameters of ``GET /v1/shape``, checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from flushtracker.serve.handle import ClientOffset, Handle, handle_or_none
from flushtracker.serve.refusals import BadRequestError
from flushtracker.serve.subset.subset_request import Params, Subset, params_of, subset_of

BEGIN: Final = "-1"
NOW: Final = "now"
Start: TypeAlias = ClientOffset | Literal["-1", "now"]

_DEFINITION: Final = ("table", "where", "columns", "replica", "params")
_FLAGS: Final = ("live", "live_sse", "experimental_live_sse", "cuts")
_UNSUPPORTED: Final = ("experimental_compaction", "database_id", "source_id", "source_secret")
_PARAM: Final = re.compile(r"params\[([^\]]*)\]")
_CURSOR: Final = re.compile(r"[0-9]{0,18}", re.ASCII)
_MOST_HANDLE: Final = 200
_MOST_TEXT: Final = 8_000


@dataclass(frozen=True, slots=True)
class RequestedDefinition:
    """A shape by definition: the unparsed texts of a request. ``params`` are the values of ``$1`` and so on."""

    table: str
    where: str | None
    columns: str | None
    replica: str
    params: Params = ()

    @property
    def characters(self) -> int:
        """The length of the condition and the columns."""
        return len(self.where or "") + len(self.columns or "") + sum(len(value) for _, value in self.params)


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """``shape`` is an id or a definition. ``live``: wait for changes, and with ``cuts`` for the next cut, too.

    ``sse``: keep sending them. With a ``subset``, some of the rows are asked for instead.
    """

    shape: str | RequestedDefinition
    start: Start
    handle_text: str | None = None
    expired_text: str | None = None
    live: bool = False
    sse: bool = False
    changes_only: bool = False
    cuts: bool = False
    cursor: int | None = None
    subset: Subset | None = None

    @property
    def handle(self) -> Handle | None:
        return handle_or_none(self.handle_text)

    @property
    def expired(self) -> Handle | None:
        """The handle that the client was told to drop."""
        return handle_or_none(self.expired_text)

    @property
    def is_returning(self) -> bool:
        """Whether the client has seen an answer before, perhaps of another server, which this one must not be
        behind.
        """
        return self.handle_text is not None or self.expired_text is not None

    @classmethod
    def of(cls, given: Mapping[str, str], body: bytes | None = None) -> "ShapeRequest":
        """Check the parameters of a request, and its body, which is a subset's; raises ``BadRequestError`` without
        their values.
        """
        _refuse_unsupported(given)
        start = _start(given)
        live, sse, experimental, cuts = (_flag(given, name) for name in _FLAGS)
        handle, expired = (_handle(given, name) for name in ("handle", "expired_handle"))
        if isinstance(start, ClientOffset) and handle is None:
            raise BadRequestError("handle is missing, which an offset needs")
        if live and not isinstance(start, ClientOffset):
            raise BadRequestError("live=true needs the offset and the handle of an answer before")
        if (sse or experimental) and not live:
            raise BadRequestError("live_sse=true needs live=true")
        cursor = given.get("cursor", "")
        if not _CURSOR.fullmatch(cursor):
            raise BadRequestError("cursor is not one that an answer had as electric-cursor")
        subset = subset_of(given, body)
        if subset is not None and live:
            raise BadRequestError("live=true does not go with a subset, which is of one offset")
        log = given.get("log", "full")
        if log not in {"full", "changes_only"}:
            raise BadRequestError("log is neither full nor changes_only")
        return cls(
            _shape(given),
            start,
            handle,
            expired,
            live=live,
            sse=sse or experimental,
            changes_only=log == "changes_only",
            cuts=cuts,
            cursor=int(cursor) if cursor else None,
            subset=subset,
        )


def _refuse_unsupported(given: Mapping[str, str]) -> None:
    found = sorted(name for name in given if name in _UNSUPPORTED)
    if found:
        raise BadRequestError(f"not supported by this server: {', '.join(found)}")


def _start(given: Mapping[str, str]) -> Start:
    offset = given.get("offset")
    if offset is None:
        raise BadRequestError("offset is missing; begin with -1")
    if offset == BEGIN:
        return "-1"
    return "now" if offset == NOW else ClientOffset.parse(offset)


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false")
    if text not in {"true", "false"}:
        raise BadRequestError(f"{name} is neither true nor false")
    return text == "true"


def _handle(given: Mapping[str, str], name: str) -> str | None:
    text = given.get(name)
    if text is not None and not 0 < len(text) <= _MOST_HANDLE:
        raise BadRequestError(f"{name} is empty or longer than {_MOST_HANDLE} characters")
    return text


def _shape(given: Mapping[str, str]) -> str | RequestedDefinition:
    shape_id, table = given.get("shape"), given.get("table")
    params = _params(given)
    defining = [name for name in _DEFINITION if name in given] + (["params"] if params else [])
    if shape_id is not None:
        if defining:
            raise BadRequestError(f"shape names the shape, so {defining[0]} must not be given")
        return shape_id
    if table is None:
        raise BadRequestError("shape is missing, or table")
    if any(len(given.get(name, "")) > _MOST_TEXT for name in _DEFINITION):
        raise BadRequestError(f"a parameter has more than {_MOST_TEXT} characters")
    replica = given.get("replica", "default")
    if replica not in {"default", "full"}:
        raise BadRequestError("replica is neither default nor full")
    return RequestedDefinition(table, given.get("where"), given.get("columns"), replica, params)


def _params(given: Mapping[str, str]) -> Params:
    """The values of placeholders, sent as ``params[1]=…``, or all as one JSON object."""
    numbered = {found[1]: value for name, value in given.items() if (found := _PARAM.fullmatch(name))}
    if numbered and "params" in given:
        raise BadRequestError("params is given in two ways")
    return params_of(given.get("params", numbered), "params")
