"""What ``make release`` makes of an archive: one without traces of the machine."""

import io
import tarfile

from tests.release import normalized


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
