"""The two faces of each client: the same methods, parameters, defaults and first lines of docs."""

import inspect
from typing import Any

import pytest

import headrace

CLIENTS = ("Admin", "Consumer", "Producer")


def members(client: type) -> dict[str, Any]:
    return {name: getattr(client, name) for name in dir(client) if not name.startswith("_")}


def parameters(member: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults. Without annotations: the compiled `send` has none."""
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(member).parameters.values()
    ]


def first_line(member: Any) -> str:
    return (inspect.getdoc(member) or "").partition("\n")[0]


@pytest.fixture(params=CLIENTS)
def faces(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    name = request.param
    return members(getattr(headrace, name)), members(getattr(headrace.aio, name))


def test_both_faces_have_the_same_methods(faces: tuple[dict[str, Any], dict[str, Any]]) -> None:
    blocking, asyncio_face = faces
    assert blocking.keys() == asyncio_face.keys()
    assert blocking.keys() >= {"close"}


def test_methods_take_the_same_parameters(faces: tuple[dict[str, Any], dict[str, Any]]) -> None:
    blocking, asyncio_face = faces
    for name, member in blocking.items():
        if callable(member):
            assert parameters(member) == parameters(asyncio_face[name]), name


def test_methods_begin_their_docs_alike(faces: tuple[dict[str, Any], dict[str, Any]]) -> None:
    blocking, asyncio_face = faces
    for name, member in blocking.items():
        assert first_line(member), name
        assert first_line(member) == first_line(asyncio_face[name]), name


@pytest.mark.parametrize("name", CLIENTS)
def test_both_faces_take_the_same_options(name: str) -> None:
    blocking, asyncio_face = getattr(headrace, name), getattr(headrace.aio, name)
    assert parameters(blocking.__init__) == parameters(asyncio_face.__init__)
    assert inspect.get_annotations(blocking.__init__) == inspect.get_annotations(
        asyncio_face.__init__
    )


def test_what_is_awaited_in_one_face_blocks_in_the_other() -> None:
    for name in CLIENTS:
        for member in members(getattr(headrace, name)).values():
            assert not inspect.iscoroutinefunction(member)
    assert {"__enter__", "__exit__", "__iter__", "__next__"} <= vars(headrace.Consumer).keys()
    assert {"__aenter__", "__aexit__", "__aiter__", "__anext__"} <= vars(
        headrace.aio.Consumer
    ).keys()
