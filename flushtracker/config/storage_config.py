"""The object stores of all paths, once for deltalake and for Spark.

Without a key, both use the environment (``AWS_REGION``, ``AWS_ENDPOINT_URL``, a profile,
a web identity, the machine's role, …), each by its own chain of the same sources.
"""

import re
from dataclasses import dataclass, field

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.strict_yaml import YamlMapping


@dataclass(frozen=True, slots=True)
class S3Config:
    """A store with the S3 API. ``None``: from the environment.

    ``path_style``: the bucket is in the path of a request rather than in its host name.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None

    def deltalake_options(self) -> dict[str, str]:
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


@dataclass(frozen=True, slots=True)
class AzureConfig:
    """An account of Azure's public cloud, and its key. ``None``: from the environment."""

    account: str | None = None
    key: str | None = field(default=None, repr=False)

    def deltalake_options(self) -> dict[str, str]:
        options = {"AZURE_STORAGE_ACCOUNT_NAME": self.account, "AZURE_STORAGE_ACCOUNT_KEY": self.key}
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True)
class GcsConfig:
    """The path of the file with a Google service account's key. ``None``: from the environment."""

    service_account: str | None = None

    def deltalake_options(self) -> dict[str, str]:
        return {} if self.service_account is None else {"GOOGLE_SERVICE_ACCOUNT": self.service_account}


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The whole section. A path's scheme determines which part it needs."""

    s3: S3Config = field(default_factory=S3Config)
    azure: AzureConfig = field(default_factory=AzureConfig)
    gcs: GcsConfig = field(default_factory=GcsConfig)


def read_storage(storage: YamlMapping) -> StorageConfig:
    """The stores of ``storage``; raises ``ConfigError``."""
    return StorageConfig(
        S3Config() if (section := storage.optional_mapping("s3")) is None else _read_s3(section),
        AzureConfig() if (section := storage.optional_mapping("azure")) is None else _read_azure(section),
        GcsConfig() if (section := storage.optional_mapping("gcs")) is None else _read_gcs(section),
    )


def _read_azure(section: YamlMapping) -> AzureConfig:
    section.allow("account", "key")
    account = section.text("account").value
    if not re.fullmatch("[a-z0-9]{3,24}", account):
        raise section.wrong("account", "the name of a storage account: 3 to 24 lower-case letters and digits")
    return AzureConfig(account, section.text("key").value)


def _read_gcs(section: YamlMapping) -> GcsConfig:
    section.allow("service_account")
    return GcsConfig(section.text("service_account").value)


def _read_s3(section: YamlMapping) -> S3Config:
    section.allow("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "path_style")
    found = {key: section.text(key).value for key in section if key != "path_style"}
    if "endpoint" in found and not found["endpoint"].startswith(("http://", "https://")):
        raise section.wrong("endpoint", "a URL that starts with https:// or http://")
    for key in ("access_key_id", "secret_access_key", "session_token"):
        if key in found and not found.keys() >= {"access_key_id", "secret_access_key"}:
            raise section.error(key, "needs access_key_id and secret_access_key")
    return S3Config(**found, path_style=section.optional_boolean("path_style"))


def deltalake_options(storage: YamlMapping) -> SecretOptions:
    """deltalake's options for the stores of ``storage``, overridden by its ``options``; raises ``ConfigError``."""
    found, options = read_storage(storage), storage.optional_mapping("options")
    stores = (found.s3, found.azure, found.gcs)
    ours = {name: value for store in stores for name, value in store.deltalake_options().items()}
    return SecretOptions({**ours, **({} if options is None else options.scalars())})
