"""Connection strings and URIs of libpq, parsed by libpq itself."""

from flushtracker.errors import ConfigError


def parse_options(text: str) -> dict[str, str]:
    """The options in a connection string of libpq, or in a URI ``postgresql://…``; raises ``ConfigError``."""
    try:
        # Imported where it is used: the tracking job reads the same file, and does not need psycopg.
        import psycopg  # noqa: PLC0415
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            "psycopg is not installed, which parses connection strings; run: pip install 'flushtracker[capture]'"
        ) from None
    try:
        return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except psycopg.Error:
        # libpq's message quotes the text, which may have a password.
        raise ConfigError(
            "the connection is not one of libpq, such as 'host=db dbname=app' or postgresql://db/app"
        ) from None
