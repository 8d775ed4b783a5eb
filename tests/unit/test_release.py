"""What ``make release`` builds besides the wheel: archives without traces of a machine, and the parts it lists."""

import io
import json
import tarfile
from pathlib import Path

from flushtracker.jvm.spark_version import LOCKED
from tests.release import ROOT, bill_of_materials, jar_lists, normalized


def archive(names: list[str], time_s: int, uid: int, mode: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.uid, entry.uname, entry.mode = len(name), time_s, uid, f"u{uid}", mode
            files.addfile(entry, io.BytesIO(name.encode()))
    return packed.getvalue()


def test_a_source_distribution_has_no_trace_of_the_machine() -> None:
    """Order, times, owners and umask."""
    here, there = archive(["a/b", "a/c"], 7, 0, 0o644), archive(["a/c", "a/b"], 1_700_000_000, 501, 0o600)
    assert here != there
    assert normalized(here, 99) == normalized(there, 99)
    with tarfile.open(fileobj=io.BytesIO(normalized(there, 99))) as files:
        assert [(each.name, each.mtime, each.uid, each.uname, each.mode) for each in files] == [
            ("a/b", 99, 0, "", 0o644),
            ("a/c", 99, 0, "", 0o644),
        ]


def test_a_link_and_a_program_stay_what_they_are() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        link, program = tarfile.TarInfo("link"), tarfile.TarInfo("program")
        link.type, link.linkname, program.mode = tarfile.SYMTYPE, "program", 0o700
        files.addfile(link)
        files.addfile(program)
    with tarfile.open(fileobj=io.BytesIO(normalized(packed.getvalue(), 99))) as files:
        link, program = files.getmembers()
    assert (link.issym(), link.linkname, program.mode) == (True, "program", 0o755)


def test_each_spark_has_a_list_of_its_jars() -> None:
    lists = jar_lists(ROOT)
    assert lists.keys() == LOCKED.keys()
    for spark, version in LOCKED.items():
        assert f"io.delta:delta-spark_{spark}_2.13:4.4.0" in lists[spark]
        assert f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}" in lists[spark]
        assert len(lists[spark]) == 11


def test_the_bill_of_materials_has_what_a_user_gets_and_no_tool_of_the_tests() -> None:
    bill = bill_of_materials(ROOT, 1_700_000_000)
    assert bill == bill_of_materials(ROOT, 1_700_000_000)
    purls = [each["purl"] for each in bill["components"]]
    assert len(purls) == len(set(purls)) == len({each["bom-ref"] for each in bill["components"]})
    pins = dict(
        line.split(";")[0].split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    for name in ("pyspark", "deltalake", "confluent-kafka", "psycopg2-binary", "sqlglot", "uvicorn", "waitress"):
        assert f"pkg:pypi/{name}@{pins[name]}" in purls
    assert "pkg:maven/io.delta/delta-spark_4.0_2.13@4.4.0" in purls
    assert not [purl for purl in purls if "pytest" in purl or "mypy" in purl or "hypothesis" in purl]
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    json.dumps(bill)


def test_the_jar_lists_are_those_of_the_lock(tmp_path: Path) -> None:
    """A lock of another form would give empty lists."""
    (tmp_path / "flushtracker/jvm").mkdir(parents=True)
    (tmp_path / "flushtracker/jvm/spark_jars.xml").write_text(
        '<m><configurations><conf name="9"/><conf name="8"/></configurations><dependencies>'
        '<dependency org="o" name="n" rev="1" conf="9->default"/><dependency org="o" name="all" rev="2"/>'
        "</dependencies></m>"
    )
    assert jar_lists(tmp_path) == {"9": ["o:n:1", "o:all:2"], "8": ["o:all:2"]}
