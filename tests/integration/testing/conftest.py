"""Brokers of these tests are started like those of users' tests, not forked."""

from collections.abc import Iterator

import pytest

from tests.fork_server import started_plainly


@pytest.fixture(autouse=True, scope="package")
def plain_start() -> Iterator[None]:
    with started_plainly():
        yield
