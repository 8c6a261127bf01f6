"""The console's process: a socket, TLS, and uvicorn around the application."""

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import uvicorn

from headrace.console.app import ConsoleSettings, create_app
from headrace.errors import ConfigError
from headrace.net.ports import listen
from headrace.tasks import EXIT_BUG, stop_on_bugs

# Pages and event streams of all viewers.
CONNECTIONS_MAX = 512
_KEEP_ALIVE_S = 30
_STOP_S_MAX = 3


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and how the console is served. Certificate and key are PEM files.

    `proxy` is the address of a proxy that speaks TLS for it, whose headers are believed.
    """

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    proxy: str | None = None
    is_insecure_allowed: bool = False

    @property
    def uses_tls(self) -> bool:
        return self.certificate is not None

    def check(self, *, signs_in: bool) -> None:
        """Refuse to serve other machines what anybody there could read or change."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("TLS needs both --ssl-certfile and --ssl-keyfile")
        if is_loopback(self.host) or self.is_insecure_allowed:
            return
        if not signs_in:
            raise ConfigError(
                f"the console would listen on {self.host} for everybody, without a sign-in",
                advice="connect it to a listener with SASL, listen on 127.0.0.1, or give"
                " --insecure if only trusted people reach it",
            )
        if not (self.uses_tls or self.proxy):
            raise ConfigError(
                f"the console would listen on {self.host} without TLS, and passwords be readable",
                advice="give --ssl-certfile and --ssl-keyfile, or --proxy behind a proxy that"
                " speaks TLS, or --insecure",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(server: ServerSettings) -> socket.socket:
    """The socket to listen on; ConfigError if that is not possible."""
    try:
        return listen(server.host, server.port)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {server.host}:{server.port}: {error.strerror or error}",
            advice="name another address with --listen; port 0 takes any free one",
        ) from None


def url_of(server: ServerSettings, listening: socket.socket) -> str:
    """The address for browsers."""
    host, port = listening.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if server.uses_tls else 'http'}://{name}:{port}/"


def serve(
    settings: ConsoleSettings,
    server: ServerSettings,
    listening: socket.socket,
    on_ready: Callable[[str], None],
) -> None:
    """Serve the console until SIGINT or SIGTERM.

    A bug in one of its tasks ends the process with status 70; one in a page is its answer alone.
    """
    port = listening.getsockname()[1]
    app = create_app(replace(settings, port=port))
    try:
        config = uvicorn.Config(
            app,
            http="h11",
            loop="uvloop",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=server.proxy is not None,
            forwarded_allow_ips=server.proxy or "",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S_MAX,
            ssl_certfile=server.certificate,
            ssl_keyfile=server.key,
            ssl_keyfile_password=server.key_password,
        )
        config.load()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificate or key of the console cannot be used: {error}",
            advice="give PEM files that belong together; see `headrace certs`",
        ) from None
    on_ready(url_of(server, listening))
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(uvicorn.Server(config), listening))


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    stop_on_bugs(asyncio.get_running_loop(), lambda _where, _error: _exit_on_bug())
    await server.serve(sockets=[listening])


def _exit_on_bug() -> NoReturn:
    """End the process at once: its stack is in the log, and its tasks are not to be trusted."""
    logging.shutdown()
    os._exit(EXIT_BUG)
