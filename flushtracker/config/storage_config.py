"""``storage`` of a configuration: the object store of all its paths, once for deltalake and for Spark.

Without the section, or without a key of it, both take what the environment has (``AWS_REGION``, ``AWS_ENDPOINT_URL``, a
profile, a web identity, the machine's role, …), each by its own chain of the same sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.strict_yaml import YamlMapping


@dataclass(frozen=True, slots=True)
class S3Config:
    """A store with the API of S3. ``None``: as the environment has it.

    ``path_style``: the bucket is in the path of a request rather than in its host.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None

    def deltalake_options(self) -> dict[str, str]:
        """These settings as options of the deltalake package."""
        options = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.session_token,
        }
        if self.path_style is not None:
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = str(not self.path_style).lower()
        if self.endpoint is not None and self.endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        return {name: value for name, value in options.items() if value is not None}


def read_s3(root: YamlMapping) -> S3Config:
    """``storage.s3`` of a file; raises ``ConfigError``."""
    storage = root.optional_mapping("storage")
    if storage is None:
        return S3Config()
    storage.allow("s3")
    section = storage.mapping("s3")
    section.allow("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "path_style")
    found = {key: section.text(key).value for key in section if key != "path_style"}
    if "endpoint" in found and not found["endpoint"].startswith(("http://", "https://")):
        raise section.wrong("endpoint", "a URL that starts with https:// or http://")
    for key in ("access_key_id", "secret_access_key", "session_token"):
        if key in found and not found.keys() >= {"access_key_id", "secret_access_key"}:
            raise section.error(key, "needs access_key_id and secret_access_key")
    return S3Config(**found, path_style=section.optional_boolean("path_style"))


def deltalake_options(s3: S3Config, section: YamlMapping) -> SecretOptions:
    """deltalake's options of a store, and further ones of ``storage_options`` in ``section``, which win."""
    further: Mapping[str, str] = {}
    if (options := section.optional_mapping("storage_options")) is not None:
        further = options.scalars()
    return SecretOptions({**s3.deltalake_options(), **further})
