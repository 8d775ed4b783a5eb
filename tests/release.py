"""``make release``: what a release consists of, in a folder; the same commit gives the same bytes.

The wheel, the source distribution, the zip for spark-submit, the lists of jars, a bill of materials, and the checksums
of all of them. Everything is built twice, from two exports of the commit, and compared.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tests.bill_of_materials import bill_of_materials, jar_lists

ROOT: Final = Path(__file__).parents[1]
_HOOK: Final = (
    "import sys; from setuptools import build_meta as b; folder = sys.argv[1]; sys.stdout = sys.stderr; "
    "b.build_sdist(folder); b.build_wheel(folder)"
)
_ZIP: Final = "import sys, pathlib; from flushtracker.spark.dist import write_zip; write_zip(pathlib.Path(sys.argv[1]))"


def build(commit: str, folder: Path) -> None:
    """Build everything of a commit into an empty folder."""
    epoch = int(_run("git", "log", "-1", "--format=%ct", commit))
    with tempfile.TemporaryDirectory(prefix="flushtracker-release-") as scratch:
        tree = Path(scratch) / "tree"
        _export(commit, tree)
        environ = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
        for program, target in ((_HOOK, folder), (_ZIP, folder / "flushtracker.zip")):
            subprocess.run([sys.executable, "-c", program, str(target)], cwd=tree, env=environ, check=True)
        for sdist in folder.glob("*.tar.gz"):
            sdist.write_bytes(normalized(sdist.read_bytes(), epoch))
        for name, jars in jar_lists(tree).items():
            (folder / f"jars-{name}.txt").write_text("".join(f"{jar}\n" for jar in jars))
        bill = bill_of_materials(tree, epoch)
        (folder / "flushtracker.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")
    sums = "".join(f"{_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
    (folder / "SHA256SUMS").write_text(sums)


def normalized(sdist: bytes, epoch: int) -> bytes:
    """The archive with its files in order, without owners and times of the machine: setuptools keeps those."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as before,
        gzip.GzipFile("", "wb", fileobj=packed, mtime=epoch) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.isdir() or member.mode & 0o100 else 0o644, {}
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def _export(commit: str, tree: Path) -> None:
    """The files of the commit and nothing else, with the same modes on any machine."""
    tree.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    before = os.umask(0o022)
    try:
        subprocess.run(["tar", "-x", "--no-same-permissions"], cwd=tree, input=archive, check=True)
    finally:
        os.umask(before)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main(arguments: list[str]) -> int:
    """Build the commit that is checked out into the folder that is the only argument."""
    (folder,) = map(Path, arguments)
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="flushtracker-release-") as scratch:
        first, second = Path(scratch) / "first", Path(scratch) / "second"
        for built in (first, second):
            built.mkdir()
            build("HEAD", built)
        differing = [file.name for file in first.iterdir() if file.read_bytes() != (second / file.name).read_bytes()]
        if differing:
            sys.stderr.write(f"built twice, these differ: {', '.join(sorted(differing))}\n")
            return 1
        folder.mkdir(parents=True, exist_ok=True)
        for file in first.iterdir():
            shutil.copyfile(file, folder / file.name)
    sys.stdout.write((folder / "SHA256SUMS").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
