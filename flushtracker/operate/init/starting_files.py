"""The files that ``flushtracker init`` writes: ``flushtracker.yaml``, and one for each shape in ``shapes.d``."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flushtracker.config.yaml_text import yaml_text
from flushtracker.errors import ConfigError, printable
from flushtracker.operate.init.candidates import Candidate
from flushtracker.operate.init.chosen_tables import typed_name
from flushtracker.operate.init.survey_text import size_text
from flushtracker.operate.shapes.add_program import file_name

CONFIG: Final = "flushtracker.yaml"
SHAPES: Final = "shapes.d"
_SHAPE: Final = """\
# {about}
id: {id}
table: {table}
"""


def require_new(folder: Path) -> None:
    """Raise ``ConfigError`` if one of the files is there already."""
    for path in (folder / CONFIG, folder / SHAPES):
        if path.is_symlink() or path.exists():
            raise ConfigError(
                f"{path} is there already, and init overwrites nothing: name another directory with --out, or move it "
                "away; a shape is added to a configuration by flushtracker add-shape"
            )


def shape_text(candidate: Candidate) -> str:
    """The file of a shape with all rows of the table."""
    definition, key = candidate.definition, ", ".join(candidate.key)
    about = f"{typed_name(candidate.name)}: {size_text(candidate)}; key: {key}"
    text = _SHAPE.format(
        about=printable(about), id=yaml_text(definition.id), table=yaml_text(typed_name(candidate.name))
    )
    columns = f"columns: [{', '.join(map(yaml_text, candidate.columns))}]"
    if candidate.left_out:
        names = printable(", ".join(candidate.left_out))
        return f"{text}# Without {names}: no shape can have values that are names.\n{columns}\n"
    condition = (
        '# where: "…"   # which rows, as a condition of SQL on columns of the replica identity, or on any: '
        "capture.replica_identity: full\n"
    )
    return f"{text}# Without these two, a shape has all columns and all rows:\n# {columns}\n{condition}"


def write_files(folder: Path, config: str, candidates: Sequence[Candidate]) -> None:
    """Write the files, all or none; raises ``ConfigError``."""
    shapes = {file_name(each.definition.id): shape_text(each) for each in candidates}
    new, file = folder / f".{SHAPES}.new", folder / CONFIG
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_new(folder)
        new.mkdir()
        try:
            for name, text in shapes.items():
                (new / name).write_text(text, encoding="utf-8")
            with file.open("x", encoding="utf-8") as opened:
                opened.write(config)
            try:
                new.rename(folder / SHAPES)
            except OSError:
                file.unlink()
                raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}; nothing was written"
        ) from error
