"""The page of ``/``: one file without external parts, and a policy that allows its own script and style."""

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Final

PAGE: Final = files("flushtracker.monitoring").joinpath("page.html").read_bytes()


def _policy(page: bytes) -> str:
    """A Content-Security-Policy that names the page's own script and style by their hashes."""

    def hashed(tag: bytes) -> str:
        contents = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
        return " ".join(f"'sha256-{b64encode(sha256(content).digest()).decode()}'" for content in contents)

    return (
        f"default-src 'none'; script-src {hashed(b'script')}; style-src {hashed(b'style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


PAGE_POLICY: Final = _policy(PAGE)
