"""`headrace up` and `headrace broker`: settings from the command line, then the broker itself."""

from collections.abc import Mapping
from pathlib import Path

import click

from headrace.cli.options import examples, key_value, unique
from headrace.config import broker_config, read_properties
from headrace.errors import ConfigError

_settings_option = click.option(
    "--set",
    "settings",
    type=key_value,
    multiple=True,
    metavar="KEY=VALUE",
    help="A broker setting under its Kafka name; may be repeated, and wins over others.",
)


@click.command(
    epilog=examples(
        "headrace up",
        "headrace up --data-dir /var/lib/headrace --listen 127.0.0.1:9192",
        "headrace up --set num.partitions=4 --set log.retention.hours=24",
    )
)
@click.option(
    "--data-dir",
    metavar="DIR",
    default="headrace-data",
    show_default=True,
    help="Where records are kept; made if it is missing.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    help="The address clients connect to; port 0 takes any free port.",
)
@_settings_option
def up(data_dir: str, listen: str, settings: tuple[tuple[str, str], ...]) -> int:
    """Start a broker for development.

    It runs in the foreground, prints one line when it is ready, and stops cleanly on Ctrl-C.
    """
    if "," in data_dir:
        raise click.UsageError(f"--data-dir is one directory, and {data_dir!r} has a comma in it.")
    if ":" not in listen or "/" in listen:
        raise click.UsageError(f"--listen {listen!r} is not of the form HOST:PORT.")
    properties = {
        "log.dirs": data_dir,
        "listeners": f"PLAINTEXT://{listen}",
        # A developer's first consumer should not wait for others to join it.
        "group.initial.rebalance.delay.ms": "0",
    }
    overrides = unique(settings, "--set")
    _refuse_both("--data-dir", "data_dir", overrides, ("log.dirs", "log.dir"))
    _refuse_both("--listen", "listen", overrides, ("listeners",))
    if "log.dir" in overrides:
        del properties["log.dirs"]
    return _serve(properties | overrides, "")


def _refuse_both(
    option: str, parameter: str, overrides: Mapping[str, str], names: tuple[str, ...]
) -> None:
    """Refuse an option together with a setting that says the same thing."""
    source = click.get_current_context().get_parameter_source(parameter)
    if source is click.core.ParameterSource.COMMANDLINE:
        for name in names:
            if name in overrides:
                raise click.UsageError(f"{option} and --set {name}=... say the same thing.")


@click.command(
    epilog=examples(
        "headrace broker --config server.properties",
        "headrace broker --config server.properties --set node.id=2",
    )
)
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help="Settings under their Kafka names, in the format of Kafka's server.properties.",
)
@_settings_option
def broker(path: Path, settings: tuple[tuple[str, str], ...]) -> int:
    """Start a broker from a properties file.

    It runs in the foreground, prints one line when it is ready, and stops cleanly on SIGTERM.
    """
    try:
        properties = read_properties(path.read_text(encoding="utf-8"))
        broker_config(properties)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{path} is not UTF-8 text.") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return _serve({**properties, **unique(settings, "--set")}, f"{path}: ")


def _serve(properties: Mapping[str, str], origin: str) -> int:
    try:
        config = broker_config(properties)
    except ConfigError as error:
        raise ConfigError(f"{origin}{error}") from None
    # The broker brings the event loop and the storage engine: not before the settings are right.
    from headrace.broker.app import run  # noqa: PLC0415

    return run(config)
