"""A pytest plugin: with `CI` set, a skipped test fails the run, and every reason is printed.

A skip is a convenience for a developer whose machine lacks a program. In CI it would be an
unnoticed gap.
"""

import os

import pytest


def _skips_are_fatal() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def _skipped(config: pytest.Config) -> list[pytest.TestReport | pytest.CollectReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return list(reporter.stats.get("skipped", ())) if reporter is not None else []


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    # pytest keeps (path, line, reason) for a skip.
    where = report.longrepr
    return str(where[2]) if isinstance(where, tuple) else str(where)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skips_are_fatal() and _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    skipped = _skipped(config)
    if not (skipped and _skips_are_fatal()):
        return
    terminalreporter.section("skipped tests fail this run, because CI is set", red=True, bold=True)
    for report in skipped:
        terminalreporter.line(f"{report.nodeid}: {_reason(report)}")
