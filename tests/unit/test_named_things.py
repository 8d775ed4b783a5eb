"""Every name that docs and docstrings put in backticks exists: in the code, in a configuration, or as a file.

A name of another system (PostgreSQL's, Spark's, …) that only documentation uses is listed in :data:`FOREIGN`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import flushtracker

PACKAGE: Final = Path(flushtracker.__file__).parent
CHECKOUT: Final = PACKAGE.parent
DATA: Final = frozenset(
    {".tla", ".cfg", ".yaml", ".yml", ".toml", ".sql", ".json", ".xml", ".html", ".properties", ".sh"}
)
NOT_OURS: Final = frozenset({".git", ".venv", ".venv-4.0", ".venv-4.1", ".jars", "data", "build", "dist", "mutants"})

FOREIGN: Final = frozenset(
    [
        *("endingOffsets", "subscribePattern", "includeHeaders", "spark.eventLog.enabled", "transformWithState"),
        *("spark.python.unix.domain.socket.enabled", "LocalRelation", "try_parse_json", "pyspark/daemon.py"),
        *("spark.authenticate", "spark.network.crypto.enabled"),  # Spark
        *(
            "inherit_replica_identity",
            "escape_string_warning",
            "lc_collate",
            "lc_ctype",
            "lc_monetary",
            "lc_numeric",
            "lc_time",
            "a_expr",
            "wal_writer_delay",
            "bytea",
            "pg_wal",
            "pg_publication_tables",
            "pg_current_snapshot()",
            "XLogData",
            "AbortIncompleteMultipartUpload",
            "select_div_scale",
            "checkpoint_timeout",
            "max_wal_size",
            "max_worker_processes",
            "min_wal_size",
            "pg_checkpoint",
            "pg_monitor",
            "pg_stat_archiver",
            "wal_keep_size",
            "cloudsqlsuperuser",
        ),
        *("pq_read_replication_message",),  # psycopg2
        *("ignore_slots",),  # Patroni
        *(
            "imagePullSecrets",
            "nodeSelector",
            "CrashLoopBackOff",
            "vm.overcommit_memory",
            "kernel.panic",
        ),  # Kubernetes, Linux
        *("DeltaTable.to_pyarrow_table", "to_pyarrow_table", "to_pyarrow_dataset", "z_order", "MERGE"),  # Delta
        *(
            "FileContext",
            "FileSystem",
            "RawLocalFileSystem",
            "LocalFileSystem",
            "DeleteOnExitHook",
            "dfs.datanode.synconclose",
        ),  # Hadoop
        *("AbortableStreamBasedFSDataOutputStream",),  # Spark's with Hadoop
        *("OPTIMIZE",),  # Delta in SQL
        *("sasl.oauthbearer.client.id",),  # Kafka
        *("jstack", "readlink"),  # programs
        *("UseNumber", "json.Marshal", "Encoder", "nil", "__proto__"),  # Go, JavaScript
        *("Host", "TCP_NODELAY", "_sum"),  # HTTP, TCP, Prometheus
        *("utils", "helpers", "Class.name", "True", "False", "Infinity", "s00000", "xxhash64"),  # words about code
    ]
)
"""Names of other systems that occur in no code and in no configuration of ours."""

WRITTEN: Final = (".json", ".log")
"""The ends of the names of files that programs write."""

KEYS: Final = frozenset({"config", "delta", "kafka", "postgres", "shapes", "spark", "status"})
"""Rooms whose name also begins settings, ours or those of other systems."""

_QUOTED: Final = re.compile(r"(?<!`)(?P<ticks>``?)(?!`)(?P<text>[^`]+)(?P=ticks)(?!`)")
_FENCED: Final = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_ROLE: Final = re.compile(r":(?:mod|class|func|meth|data|attr):`~?([^`]+)`")
_HEAD: Final = re.compile(r"``([A-Za-z_]\w*)``:")
_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(\))?")
_PATH: Final = re.compile(r"(?:flushtracker|tests|docs|conf|jobs|examples)/[\w./-]+|(?:\w+/)+\w+\.py")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_WITH_STATEMENTS: Final = (ast.stmt, ast.excepthandler, ast.match_case)


class Module(NamedTuple):
    """What the checks need of a module's tree; the trees of all modules would take half a gigabyte."""

    docstring: str
    docstrings: tuple[tuple[str, int], ...]
    """Its own and those of what it defines, also below assignments, each with its line."""
    words: frozenset[str]
    """Every identifier, and every word of its strings but the docstrings."""
    definitions: frozenset[str]
    """What it defines or imports, as ``name`` and as ``Class.name``."""


class Text(NamedTuple):
    """A docstring or comment of ``module``, or a page (``module`` is ``None``), and where it is."""

    text: str
    place: str
    module: Path | None


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((CHECKOUT / folder).rglob("*.py"))


@cache
def module_of(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    docstrings = list(docstrings_in(tree))
    return Module(
        ast.get_docstring(tree) or "",
        tuple((str(docstring.value), docstring.lineno) for docstring in docstrings),
        frozenset(words_in(tree, docstrings)),
        frozenset(definitions_in(tree)),
    )


def docstrings_in(tree: ast.Module) -> Iterator[ast.Constant]:
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop(0)
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as docstring):
                    yield docstring
        nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, _WITH_STATEMENTS)]


@cache
def texts() -> tuple[Text, ...]:
    """All prose."""
    return tuple(read_texts())


def read_texts() -> Iterator[Text]:
    """All pages, docstrings and comments."""
    for path in [*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")]:
        yield Text(_FENCED.sub("", path.read_text()), str(path.relative_to(CHECKOUT)), None)
    for path in python_files("flushtracker", "jobs", "examples", "tests"):
        name = path.relative_to(CHECKOUT)
        for docstring, line in module_of(path).docstrings:
            yield Text(docstring, f"{name}:{line}", path)
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.COMMENT:
                yield Text(token.string, f"{name}:{token.start[0]}", path)


def words_in(tree: ast.Module, docstrings: Iterable[ast.Constant]) -> Iterator[str]:
    no_words = {id(docstring) for docstring in docstrings}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield from name.split(".")
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.keyword(arg=str(name))
            ):
                yield name
            case ast.ImportFrom(module=str(name)):
                yield from name.split(".")
            case ast.Constant(value=str(text)) if id(node) not in no_words:
                yield from _WORD.findall(text)


@cache
def known_words() -> frozenset[str]:
    """The words of the product's code, of its configurations and schemas, and the names of tests."""
    words: set[str] = set()
    for path in python_files("flushtracker", "jobs", "examples"):
        words.update(module_of(path).words)
    for path in CHECKOUT.rglob("*"):
        if path.suffix in DATA and path.relative_to(CHECKOUT).parts[0] not in NOT_OURS and path.is_file():
            words.update(_WORD.findall(path.read_text()))
    words.update(_WORD.findall((CHECKOUT / "Makefile").read_text()))
    return frozenset(words)


@cache
def words_known_to_tests() -> frozenset[str]:
    return known_words().union(*(module_of(path).words for path in python_files("tests")))


def definitions_in(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        yield from defined_by(node)
        if isinstance(node, ast.ClassDef):
            for inner in ast.walk(node):
                yield from (f"{node.name}.{name}" for name in defined_by(inner))


def defined_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (part for target in targets for part in target_names(target))
        case ast.AnnAssign(target=target):
            yield from target_names(target)
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names)


@cache
def all_definitions() -> frozenset[str]:
    """The names that modules and classes of ours and of the tests define."""
    files = python_files("flushtracker", "tests")
    return frozenset(part for path in files for name in module_of(path).definitions for part in name.split("."))


@cache
def file_names() -> frozenset[str]:
    """The names of files, without their folders."""
    folders = [folder for folder in CHECKOUT.iterdir() if folder.is_dir() and folder.name not in NOT_OURS]
    return frozenset(path.name for folder in folders for path in folder.rglob("*.*"))


def target_names(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Tuple(elts=parts):
            yield from (name for part in parts for name in target_names(part))


def module_file(dotted: str) -> Path | None:
    """The file of a module or package of ours, named from ``flushtracker``, from below it, or from ``tests``."""
    base = (CHECKOUT if dotted.startswith("tests.") else PACKAGE).joinpath(
        *dotted.removeprefix("flushtracker.").split(".")
    )
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def exists(dotted: str) -> bool:
    """Whether a module of ours, or something in one, has that name."""
    parts = dotted.removesuffix("()").split(".")
    if parts[0] == "flushtracker" and len(parts) == 2 and parts[1] in flushtracker.__all__:
        return True
    for length in range(len(parts), 0, -1):
        module = module_file(".".join(parts[:length]))
        if module is not None:
            return length == len(parts) or ".".join(parts[length:][:2]) in module_of(module).definitions
    return False


def is_ours(name: str) -> bool:
    """Whether a dotted name begins with a module or a room of ours, so that it must be one."""
    first, *others = name.split(".")
    if not others:
        return False
    return module_file(f"{first}.{others[0]}") is not None or (
        first not in KEYS and (first == "flushtracker" or (PACKAGE / first).is_dir())
    )


def is_known(name: str, text: Text) -> bool:
    """Whether code or configurations have every word of a name; a metric has our prefix besides, and often a unit."""
    of_tests = text.module is None or text.module.is_relative_to(CHECKOUT / "tests")
    words = words_known_to_tests() if of_tests else known_words()
    metric = re.fullmatch(r"flushtracker_((\w+?)(?:_seconds|_bytes|_total)?)", name)
    return words.issuperset(_WORD.findall(name)) or bool(metric and not words.isdisjoint(metric.groups()))


def unknown_names(text: Text) -> Iterator[str]:
    """The names in backticks that are nowhere."""
    for found in _QUOTED.finditer(text.text):
        name = found["text"].strip().removeprefix("~")
        if name in FOREIGN or name in file_names() or name.endswith(WRITTEN):
            continue
        if _PATH.fullmatch(name):
            if not any((root / name).exists() for root in (CHECKOUT, PACKAGE)):
                yield name
        elif _NAME.fullmatch(name) and not (exists(name) if is_ours(name) else is_known(name, text)):
            yield name


def unresolved_references(text: Text) -> Iterator[str]:
    """The targets of a docstring's roles, such as ``:class:``, that no module of ours defines."""
    for target in _ROLE.findall(text.text):
        if target.startswith("."):
            assert text.module is not None
            package = ".".join(text.module.relative_to(PACKAGE).parent.parts)
            known = exists(f"flushtracker.{package}{target}")
        elif target.startswith(("flushtracker.", "tests.")):
            known = exists(target)
        else:
            known = all_definitions().issuperset(target.split("."))
        if not known:
            yield target


def wrong_heads(path: Path) -> Iterator[str]:
    """The names that a module's docstring begins with, and that it does not define."""
    heads = re.match(r"((?:``\w+``(?:, | and )?)+):", module_of(path).docstring)
    for name in re.findall(r"``([A-Za-z]\w*)``", heads[1]) if heads else ():
        if name not in module_of(path).definitions:
            yield name


def test_every_name_in_backticks_exists() -> None:
    """A name that was renamed or deleted is a false sign."""
    assert [(text.place, name) for text in texts() for name in unknown_names(text)] == []


def test_every_reference_in_a_docstring_resolves() -> None:
    """What a role such as ``:class:`` names is defined somewhere."""
    assert [(text.place, name) for text in texts() if text.module for name in unresolved_references(text)] == []


def test_a_module_defines_what_its_first_line_names() -> None:
    """A module whose docstring begins with a name in backticks and a colon is about something of that name."""
    assert [(str(path), name) for path in python_files("flushtracker", "tests") for name in wrong_heads(path)] == []


def test_every_foreign_name_is_mentioned() -> None:
    """A name that no text mentions any more leaves the list."""
    assert {found["text"] for text in texts() for found in _QUOTED.finditer(text.text)} >= FOREIGN


def test_checks_find_the_false_signs_that_they_look_for() -> None:
    """A name of a module that was deleted, of one that never was, and one that a docstring refers to."""
    module = PACKAGE / "wal" / "lsn.py"
    signs = Text(
        "``tracking.shape_offsets``, ``tests/unit/test_gone.py``, ``take_none``, ``wal.lsn``", "docstring", module
    )
    assert list(unknown_names(signs)) == ["tracking.shape_offsets", "tests/unit/test_gone.py", "take_none"]
    assert list(unresolved_references(Text(":class:`Gone`, :func:`format_lsn`", "docstring", module))) == ["Gone"]
