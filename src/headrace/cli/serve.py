"""`headrace up` and `headrace broker`: settings from the command line, then the broker."""

import logging
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from headrace.cli.options import examples, key_value, without_secrets
from headrace.config import broker_config, read_properties
from headrace.config.listeners import ANY_ADDRESS, parse_listeners
from headrace.errors import ConfigError
from headrace.net.addresses import DEFAULT_PORT, Address
from headrace.net.ports import HeldPort, listen_on_unused_port
from headrace.net.ports import listen as socket_listening

_BROKERS_MAX = 100
ADMIN_SETTING = "admin.listener"
# The port of the first broker's admin listener, and the address of all.
_ADMIN_PORT = 9644
_LOOPBACK = "127.0.0.1"
_SECRET_ADVICE = "put it into a properties file, and start headrace broker --config FILE"

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
        "headrace up --brokers 3",
        "headrace up --secure",
    )
)
@click.option(
    "--brokers",
    type=click.IntRange(1, _BROKERS_MAX),
    metavar="N",
    default=1,
    show_default=True,
    help="How many brokers to run, each in a process of its own, as one cluster.",
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
    help="The address clients connect to; port 0 takes any free port, and of several brokers each"
    " one takes the next port.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Have TLS and logins (SASL_SSL) on every listener and enforce ACLs, with certificates, a"
    " user and a file for clients made in DIR/security.",
)
@click.option(
    "--no-console",
    is_flag=True,
    envvar="HEADRACE_NO_CONSOLE",
    show_envvar=True,
    help="Leave out the console, which is served on this machine if headrace[console] is"
    " installed.",
)
@_settings_option
@click.option(
    "-v", "--verbose", is_flag=True, help="Log what the broker does, not only what goes wrong."
)
def up(
    brokers: int,
    data_dir: str,
    listen: str,
    secure: bool,
    no_console: bool,
    settings: tuple[tuple[str, str], ...],
    verbose: bool,
) -> int:
    """Start a broker for development, or a cluster of several.

    It runs in the foreground, prints one line when it is ready, and stops cleanly on Ctrl-C. In a
    cluster a broker that dies is started again.
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
        # Whoever starts it reads what it says, even through a pipe.
        "log.format": "text",
    }
    overrides = without_secrets(settings, _SECRET_ADVICE)
    _refuse_both("--data-dir", "data_dir", overrides, ("log.dirs", "log.dir"))
    _refuse_both("--listen", "listen", overrides, ("listeners",))
    if secure:
        return _up_secure(
            brokers,
            data_dir,
            listen,
            properties,
            overrides,
            verbose=verbose,
            console=not no_console,
        )
    if brokers > 1:
        return _supervise(
            brokers,
            data_dir,
            listen,
            properties,
            overrides,
            verbose=verbose,
            console=not no_console,
        )
    if "log.dir" in overrides:
        del properties["log.dirs"]
    return _up_alone(properties, overrides, verbose=verbose, console=not no_console)


def _up_alone(
    properties: dict[str, str], overrides: Mapping[str, str], *, verbose: bool, console: bool
) -> int:
    """One broker in this process."""
    # What is wrong with the settings is said before there is anything else.
    broker_config({**properties, **overrides})
    host, port = parse_listeners((properties["listeners"],))[0][1:]
    # Other listeners may speak anything, which a console would have to be told.
    console = console and "listeners" not in overrides
    held = []
    if console and not port:
        # Held until the end: the console has to know it.
        held.append(HeldPort(host or _LOOPBACK))
        port = held[0].number
        properties["listeners"] = f"PLAINTEXT://{Address(host, port)}"
    usual = port == DEFAULT_PORT and "listeners" not in overrides
    with (
        _admin_listeners(1, overrides, usual=usual, secure=False) as [admin],
        _console([Address(host, port)], {}, usual=usual, wanted=console) as url,
    ):
        return serve({**properties, **admin, **overrides}, verbose=verbose, console=url)


@contextmanager
def _console(
    addresses: Sequence[Address],
    properties: Mapping[str, str],
    *,
    usual: bool,
    wanted: bool,
    signs_in: bool = False,
) -> Iterator[str]:
    """A console of the brokers at these addresses; its URL, or nothing where there is none."""
    from headrace.cli.console import DEFAULT_PORT as CONSOLE_PORT  # noqa: PLC0415
    from headrace.cli.console import is_installed  # noqa: PLC0415

    if not (wanted and is_installed()):
        yield ""
        return
    from headrace.cli.console_process import console_beside  # noqa: PLC0415

    if usual and _is_free(CONSOLE_PORT):
        listening = socket_listening(_LOOPBACK, CONSOLE_PORT)
    else:
        listening = listen_on_unused_port(_LOOPBACK)
    near = [
        address._replace(host=_LOOPBACK) if address.host in ANY_ADDRESS else address
        for address in addresses
    ]
    bootstrap = ",".join(map(str, near))
    with console_beside(bootstrap, properties, listening, signs_in=signs_in) as url:
        yield url


def _up_secure(
    count: int,
    data_dir: str,
    listen: str,
    properties: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    verbose: bool,
    console: bool,
) -> int:
    from headrace.cli.secured_cluster import DIRECTORY, PROTOCOL, SecuredCluster  # noqa: PLC0415
    from headrace.client.property_files import read_client_config  # noqa: PLC0415

    for name in ("log.dirs", "log.dir", "listeners"):
        if name in overrides:
            raise click.UsageError(f"--secure and --set {name}=... do not go together.")
    host, first = parse_listeners((properties["listeners"],))[0][1:]
    # Held until the end, as in a cluster: the file for clients has the ports.
    held = [HeldPort(host) for _ in range(0 if first else count)]
    ports = [port.number for port in held] or range(first, first + count)
    reached = socket.gethostname() if host in ANY_ADDRESS else host
    directory = Path(data_dir).resolve() / DIRECTORY
    security = SecuredCluster.prepare(directory, [socket.gethostname(), reached])
    bootstrap = ",".join(str(Address(reached, port)) for port in ports)
    file = security.write_client_file(directory, bootstrap)
    hint = (
        f"clients connect by {file}: headrace topics list --client-config {shlex.quote(str(file))}"
    )
    common = {**properties, **security.broker_properties(), **overrides}
    usual = first == DEFAULT_PORT
    reaching = [Address(reached, port) for port in ports]
    with (
        _admin_listeners(count, overrides, usual=usual, secure=True) as admins,
        _console(
            reaching, read_client_config(file), usual=usual, wanted=console, signs_in=True
        ) as url,
    ):
        if count == 1:
            common["listeners"] = f"{PROTOCOL}://{Address(host, ports[0])}"
            return serve({**common, **admins[0]}, verbose=verbose, hint=hint, console=url)
        _refuse_assigned(data_dir, overrides)
        return _run_cluster(
            [Address(host, port) for port in ports],
            data_dir,
            common,
            admins,
            protocol=PROTOCOL,
            verbose=verbose,
            hint=hint,
            console=url,
        )


def _supervise(
    count: int,
    data_dir: str,
    listen: str,
    properties: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    verbose: bool,
    console: bool,
) -> int:
    _refuse_assigned(data_dir, overrides)
    host, first = parse_listeners((properties["listeners"],))[0][1:]
    # Held until the end: a broker that dies finds its port free when it is started again.
    held = [HeldPort(host) for _ in range(0 if first else count)]
    ports = [port.number for port in held] or range(first, first + count)
    usual = first == DEFAULT_PORT
    addresses = [Address(host, port) for port in ports]
    with (
        _admin_listeners(count, overrides, usual=usual, secure=False) as admins,
        _console(addresses, {}, usual=usual, wanted=console) as url,
    ):
        return _run_cluster(
            addresses,
            data_dir,
            {**properties, **overrides},
            admins,
            protocol="PLAINTEXT",
            verbose=verbose,
            console=url,
        )


def _refuse_assigned(data_dir: str, overrides: Mapping[str, str]) -> None:
    """Refuse settings that a cluster assigns itself, and a directory of a single broker."""
    from headrace.cli import supervisor  # noqa: PLC0415  # one broker needs none

    if given := [name for name in supervisor.ASSIGNED if name in overrides]:
        raise click.UsageError(f"--set {given[0]}=... is not for a cluster, which assigns it.")
    if (Path(data_dir) / "meta.properties").exists():
        raise click.UsageError(
            f"{data_dir} has the data of a single broker; give a cluster another --data-dir."
        )


@contextmanager
def _admin_listeners(
    count: int, overrides: Mapping[str, str], *, usual: bool, secure: bool
) -> Iterator[list[dict[str, str]]]:
    """The settings of the admin listener of each broker; their ports are held while they run.

    Brokers at the `usual` port have the usual admin ports, one after the other, if those are free.
    A broker that is started again comes back at its port, so that dashboards find it.
    """
    if ADMIN_SETTING in overrides:
        if count > 1 and overrides[ADMIN_SETTING]:
            raise click.UsageError(
                f"--set {ADMIN_SETTING}=... is not for a cluster, whose brokers need one each;"
                " empty it turns all of them off."
            )
        yield [{} for _ in range(count)]
        return
    ports = list(range(_ADMIN_PORT, _ADMIN_PORT + count))
    held: list[HeldPort] = []
    if not usual or not all(map(_is_free, ports)):
        held = [HeldPort(_LOOPBACK) for _ in range(count)]
        ports = [port.number for port in held]
    scheme = "https" if secure else "http"
    try:
        yield [{ADMIN_SETTING: f"{scheme}://{Address(_LOOPBACK, port)}"} for port in ports]
    finally:
        for port in held:
            port.release()


def _is_free(port: int) -> bool:
    """Whether nothing listens at a port of this machine now."""
    try:
        socket_listening(_LOOPBACK, port).close()
    except OSError:
        return False
    return True


def _run_cluster(
    addresses: Sequence[Address],
    data_dir: str,
    common: Mapping[str, str],
    admins: Sequence[Mapping[str, str]],
    *,
    protocol: str,
    verbose: bool,
    hint: str = "",
    console: str = "",
) -> int:
    from headrace.cli import supervisor  # noqa: PLC0415  # As above.

    members = supervisor.plan(
        addresses,
        data_dir,
        socket.gethostname(),
        common,
        admins,
        protocol=protocol,
        verbose=verbose,
    )
    for member in members:
        broker_config(member.properties)
    return supervisor.run(members, data_dir, hint, console)


def _refuse_both(
    option: str, parameter: str, overrides: Mapping[str, str], names: tuple[str, ...]
) -> None:
    """Refuse an option together with a setting of the same meaning."""
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
    return serve({**properties, **without_secrets(settings, _SECRET_ADVICE)}, f"{path}: ")


def serve(
    properties: Mapping[str, str],
    origin: str = "",
    *,
    verbose: bool = True,
    hint: str = "",
    console: str = "",
) -> int:
    """Run a broker to its end; ConfigError for wrong settings names their `origin`.

    A broker that is not `verbose` logs warnings and errors only. The ready line has the URL of the
    console, and the hint follows it.
    """
    try:
        config = broker_config(properties)
    except ConfigError as error:
        raise ConfigError(f"{origin}{error}") from None
    # Imported only with correct settings: the broker imports the event loop and the storage engine.
    from headrace.broker.app import run  # noqa: PLC0415

    return run(config, logging.INFO if verbose else logging.WARNING, hint, console)
