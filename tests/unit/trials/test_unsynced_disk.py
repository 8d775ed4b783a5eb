"""``UnsyncedDisk``: which syncs of which programs count, and what a power failure leaves."""

import subprocess
import sys
from pathlib import Path

import pytest

from flushtracker.trials.power_failure import sync_filter
from flushtracker.trials.power_failure.sync_watch import require_seccomp
from flushtracker.trials.power_failure.unsynced_disk import UnsyncedDisk
from tests.support.processes import run_to_end

STATIC_PROGRAM = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
    int file = open("a", O_CREAT | O_WRONLY, 0600);
    if (write(file, "whole", 5) != 5 || syscall(SYS_fsync, file) || syscall(SYS_fsync, open(".", O_RDONLY))) abort();
}
"""


@pytest.fixture
def disk(tmp_path: Path) -> UnsyncedDisk:
    """An empty one."""
    (tmp_path / "data").mkdir()
    return UnsyncedDisk(tmp_path / "data", tmp_path / "store")


def run(disk: UnsyncedDisk, *command: str) -> str:
    """Run a command in the folder; returns what it prints."""
    done = run_to_end(disk.command(command), cwd=disk.root)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_python(disk: UnsyncedDisk, script: str) -> None:
    run(disk, sys.executable, "-c", f"import mmap, os\nfolder = os.open('.', os.O_RDONLY)\n{script}")


def left_synced(disk: UnsyncedDisk) -> dict[str, str | None]:
    """What is left of each path if nothing but what was synced is; a folder has ``None``."""
    target = disk.root.with_name("left")
    disk.leave_synced(target)
    found = {str(path.relative_to(target)): path.read_text() if path.is_file() else None for path in target.rglob("*")}
    run(disk, "rm", "-r", str(target))
    return found


def test_a_name_needs_its_folder_and_a_content_its_file(disk: UnsyncedDisk) -> None:
    """Neither is durable by the other; what is written after a sync is not."""
    run_python(
        disk,
        "file = open('a', 'w'); file.write('old'); file.flush(); os.fsync(file)\nopen('b', 'w').write('lost')",
    )
    assert left_synced(disk) == {}
    run_python(disk, "os.fsync(folder); open('a', 'a').write(' lost')")
    assert left_synced(disk) == {"a": "old", "b": ""}


def test_a_renamed_file_has_its_old_name_until_its_folder_is_synced(disk: UnsyncedDisk) -> None:
    """As has a deleted one."""
    run_python(disk, "file = open('a', 'w'); file.write('x'); file.flush(); os.fdatasync(file); os.fsync(folder)")
    run_python(disk, "os.rename('a', 'b')")
    assert left_synced(disk) == {"a": "x"}
    run_python(disk, "os.fsync(folder)")
    assert left_synced(disk) == {"b": "x"}
    run_python(disk, "os.remove('b')")
    assert left_synced(disk) == {"b": "x"}


def test_a_folder_needs_its_parent(disk: UnsyncedDisk) -> None:
    """Its own sync is for the names in it."""
    run_python(disk, "os.mkdir('sub'); open('sub/a', 'w'); os.symlink('a', 'sub/link')\nos.fsync(os.open('sub', 0))")
    assert left_synced(disk) == {}
    run_python(disk, "os.fsync(folder)")
    assert left_synced(disk) == {"sub": None, "sub/a": "", "sub/link": ""}


def test_all_names_may_be_left_without_their_contents(disk: UnsyncedDisk) -> None:
    """A synced content stays as it was synced."""
    run_python(disk, "file = open('a', 'w'); file.write('x'); file.flush(); os.fsync(file); file.write('y')")
    run_python(disk, "open('b', 'w').write('lost')")
    contents = set[str]()
    for seed in range(20):
        disk.leave_names(disk.root.with_name(f"left_{seed}"), seed)
        assert disk.root.with_name(f"left_{seed}").joinpath("a").read_text() == "x"
        contents.add(disk.root.with_name(f"left_{seed}").joinpath("b").read_text())
    assert {"", "lost"} < contents


def test_a_program_that_calls_the_kernel_itself_takes_part(disk: UnsyncedDisk, tmp_path: Path) -> None:
    """Such as any in Go: statically linked, without the calls of a C library."""
    (tmp_path / "static.c").write_text(STATIC_PROGRAM)
    command = ["cc", "-static", "-o", str(tmp_path / "static"), str(tmp_path / "static.c")]
    subprocess.run(command, check=True)
    run(disk, str(tmp_path / "static"))
    assert left_synced(disk) == {"a": "whole"}


def test_all_processes_that_a_command_starts_take_part(disk: UnsyncedDisk) -> None:
    """A shell's, for example, and the sync of everything."""
    run(disk, "sh", "-c", "echo x > a; sync a; sync .; echo y > b")
    assert left_synced(disk) == {"a": "x\n"}
    run(disk, "sh", "-c", "sync")
    assert left_synced(disk) == {"a": "x\n", "b": "y\n"}
    assert disk.not_followed is None


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("os.open('a', os.O_CREAT | os.O_WRONLY | os.O_DSYNC)", "opens a file with O_SYNC or O_DSYNC"),
        (
            "os.pwritev(os.open('a', os.O_CREAT | os.O_WRONLY), [b'x'], 0, os.RWF_DSYNC)",
            "syncs as it writes (pwritev2)",
        ),
        ("open('a', 'w').write('x'); mmap.mmap(os.open('a', os.O_RDWR), 1).flush()", "syncs memory (msync)"),
        ("os.open('a', os.O_CREAT | os.O_WRONLY)", None),
        ("os.pwritev(os.open('a', os.O_CREAT | os.O_WRONLY), [b'x'], 0)", None),
    ],
)
def test_a_sync_of_another_kind_is_noticed(disk: UnsyncedDisk, script: str, what: str | None) -> None:
    """It happens, but is not recorded, so what would be left is unknown."""
    run_python(disk, script)
    assert disk.not_followed == what


def test_what_a_power_failure_left_is_durable(disk: UnsyncedDisk) -> None:
    """The next power failure leaves it, too."""
    run_python(disk, "file = open('a', 'w'); file.write('x'); file.flush(); os.fsync(file); os.fsync(folder)")
    disk.leave_synced(disk.root.with_name("left"))
    run_python(disk, "open('a', 'a').write('lost')")
    disk.replace(disk.root.with_name("left"))
    assert (disk.root / "a").read_text() == "x"
    assert left_synced(disk) == {"a": "x"}


def test_a_sync_fails_where_the_kernel_would_fail_it(disk: UnsyncedDisk) -> None:
    """A closed descriptor, or a pipe."""
    run_python(
        disk, "for bad in (99, os.pipe()[1]):\n try: os.fsync(bad)\n except OSError: pass\n else: raise SystemExit(1)"
    )


def test_the_command_ends_as_it_would(disk: UnsyncedDisk) -> None:
    """With its exit code, its output, and the environment."""
    done = subprocess.run(disk.command(["sh", "-c", "echo $0 $HOME; exit 7", "a b"]), capture_output=True, check=False)
    assert (done.returncode, done.stdout.split()[:2]) == (7, [b"a", b"b"])
    done = subprocess.run(disk.command(["no-such-command"]), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"no-such-command: No such file or directory\n")


def test_where_it_cannot_work_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine, or a kernel that refuses."""
    require_seccomp()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(Exception, match="on Linux on x86_64 and aarch64, but this is Linux on riscv64"):
        require_seccomp()


@pytest.mark.parametrize("machine", sorted(sync_filter.SYSCALLS))
def test_the_filter_jumps_to_its_own_instructions(machine: str) -> None:
    """A jump past the end would be refused by the kernel; on the other machine, nothing else would notice."""
    instructions = [*sync_filter._instructions(machine)]
    returns = {index for index, each in enumerate(instructions) if each[0] == 0x06}
    for index, (code, if_true, if_false, _) in enumerate(instructions):
        if code in {0x15, 0x45}:
            assert max(index + 1 + if_true, index + 1 + if_false) < len(instructions)
    assert len(instructions) - 1 in returns
