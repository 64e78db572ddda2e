"""Names a failed test the moment it fails: a run takes long, and may be interrupted before it tells of anything."""

from __future__ import annotations

import pytest


class ToldAtOnce:
    """Of the process that reports, whichever ran the test."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED {report.nodeid} ({report.when}): {_why(report)}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(reporter, pytest.TerminalReporter) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ToldAtOnce(reporter))


def _why(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(report.longrepr if crash is None else crash.message)
    return message.partition("\n")[0][:300]
