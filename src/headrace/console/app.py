"""The console as an ASGI application.

Conventions, for whoever adds a page:

- A page is `async def name(request) -> Response` in `pages/<subject>.py`; its `ROUTES` are named in
  `create_app`. It gets at the cluster by `access_of(request)`: `.state` (the newest sample, None at
  first), `.history` (series), `.admin`, `.consumer(...)`, `.producer(...)`, all as the viewer.
- It answers with `page(request, "<template>.html", title=..., **values)`. Templates extend
  `base.html` and import `macros.html`; texts are escaped and made visible by themselves, links are
  made by `link("/topics/" ~ name|segment, ...)`. No inline script or style, no `style` attribute.
- Lists are `listing(request.query_params, path, rows, columns, text=...)` and the macros `search`,
  `th` and `pager`.
- A change is a POST of a form with `{{ csrf_field(csrf) }}`. `form = await read_form(request)`
  checks its token; then `return redirect(request, path, "what was done")`. Afterwards call
  `access.sampler.refresh()` if samples show it.
- Any `HeadraceError` that is raised becomes a page with its text and status (`errors.status_of`):
  `RequestRefused(status, what, advice=...)`, `not_found(kind, name)`, `FieldError(field, what)`.
- An element with an id and `data-live` is replaced at every new sample (`static/console.js`). Other
  scripts are modules in `static/`, included in the block `scripts`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headrace.clock import Clock, SystemClock
from headrace.console import live
from headrace.console.cluster_access import ClusterAccess, ClusterConnection
from headrace.console.error_pages import on_bug, on_error, on_http_error
from headrace.console.oidc_settings import OidcSettings
from headrace.console.pages import (
    brokers,
    groups,
    message_streams,
    messages,
    overview,
    pipelines,
    security,
    sign_in,
    topic_changes,
    topics,
    transactions,
)
from headrace.console.pipeline_runs import PipelineRuns
from headrace.console.protection import AllowedHosts, Protection
from headrace.console.sessions import Sessions, SignInLimit
from headrace.console.viewers import Console, ViewerGate
from headrace.errors import HeadraceError
from headrace.monitoring.sampler import INTERVAL_S
from headrace.tasks import TaskScope

_EXPIRY_S = 30.0


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """What a console shows, and to whom.

    With `signs_in` every viewer logs in to the cluster; otherwise all act as the user of the
    connection's properties. `hosts` are the names by which browsers may ask for it.
    """

    connection: ClusterConnection
    signs_in: bool = False
    hosts: tuple[str, ...] = ()
    # Cookies are not kept apart by port, so that consoles on one host need names of their own.
    port: int = 0
    interval_s: float = INTERVAL_S
    pipelines: PipelineRuns | None = None
    oidc: OidcSettings | None = None


def create_app(settings: ConsoleSettings, clock: Clock | None = None) -> Starlette:
    """The application; its lifespan opens and closes the connections to the cluster."""
    clock = clock or SystemClock()
    console = Console(
        settings.connection,
        Sessions(clock),
        SignInLimit(clock),
        settings.signs_in,
        cookie=f"headrace-console-{settings.port}",
        pipelines=settings.pipelines,
        interval_s=settings.interval_s,
    )
    if settings.oidc is not None:
        # Its library is loaded where it is used only.
        from headrace.console.oidc import OidcProvider  # noqa: PLC0415

        console.oidc = OidcProvider(settings.oidc, clock)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = TaskScope("console")
        tasks.start(_expire(console), "expiry of sessions")
        if not settings.signs_in:
            console.everybody = ClusterAccess(settings.connection, interval_s=settings.interval_s)
            console.everybody.sampler.start()
        try:
            yield
        finally:
            await tasks.close()
            await console.replays.close()
            await console.sessions.close()
            if console.everybody is not None:
                await console.everybody.close()

    app = Starlette(
        routes=[
            *overview.ROUTES,
            *brokers.ROUTES,
            *topics.ROUTES,
            *topic_changes.ROUTES,
            *groups.ROUTES,
            *transactions.ROUTES,
            *security.ROUTES,
            *pipelines.ROUTES,
            *sign_in.ROUTES,
            *messages.ROUTES,
            *message_streams.ROUTES,
            *live.ROUTES,
            Route("/healthz", healthz),
            Mount("/static", StaticFiles(packages=[("headrace.console", "static")])),
        ],
        middleware=[
            Middleware(Protection, hosts=AllowedHosts(settings.hosts)),
            Middleware(ViewerGate, console=console),
        ],
        exception_handlers={
            HeadraceError: on_error,
            HTTPException: on_http_error,
            Exception: on_bug,
        },
        lifespan=lifespan,
    )
    app.state.console = console
    return app


async def healthz(request: Request) -> Response:
    """`GET /healthz`: whether this process serves; nothing of the cluster."""
    return JSONResponse({"status": "ok"})


async def _expire(console: Console) -> None:
    while True:
        await asyncio.sleep(_EXPIRY_S)
        await console.sessions.end_expired()
