"""The README and the links for a package index, where relative links lead nowhere. pyproject.toml has all else."""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = ""
"""The address of the public repository, such as ``https://HOST/OWNER/PROJECT``. None before the first release."""


def for_index(readme: str, repository: str) -> str:
    """``readme`` with absolute links; without a repository, with the names of files, and without images."""
    if not repository:
        without_images = re.sub(r"!\[[^\]]*\]\((?!\w+://)[^)]*\)\n+", "", readme)
        return re.sub(r"\[([^\]]*)\]\((?!\w+://)[^)]*\)", r"\1", without_images)
    images = re.sub(r"(!\[[^\]]*\]\()(?!\w+://)", rf"\1{repository}/raw/HEAD/", readme)
    return re.sub(r"(\]\()(?!\w+://)", rf"\1{repository}/blob/HEAD/", images)


if __name__ == "__main__":
    setup(
        long_description=for_index((Path(__file__).parent / "README.md").read_text(encoding="utf-8"), REPOSITORY),
        long_description_content_type="text/markdown",
        project_urls={"Source": REPOSITORY} if REPOSITORY else {},
    )
