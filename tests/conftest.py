"""What holds for every test: no keys, no home, no network, no blocked loop, no task left behind."""

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import hypothesis
import jsonschema.validators  # noqa: F401  # loaded with the first executor that is made: that it reads files is no fault of a test
import pytest

from tests.guards import is_private_setting, refused, watch_event_loop, watch_network
from tests.requirements import REQUIREMENTS, unproven

ROOT: Final = Path(__file__).parents[1]

# A deadline would be a wall-clock assertion.
hypothesis.settings.register_profile("loopwright", deadline=None)
hypothesis.settings.load_profile("loopwright")


def pytest_configure(config: pytest.Config) -> None:
    heed_signals()
    watch_network()


def heed_signals() -> None:
    """A shell's background job and `nohup` have what they start ignore these, and that is inherited."""
    handlers: dict[str, Any] = {"SIGINT": signal.default_int_handler, "SIGHUP": signal.SIG_DFL}
    for name, handler in handlers.items():
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_report_header(config: pytest.Config) -> list[str]:
    missing = unproven()
    return [
        f"promises: {len(REQUIREMENTS) - len(missing)} of {len(REQUIREMENTS)} have a test",
        *missing_lines(missing),
    ]


def missing_lines(missing: list[str]) -> list[str]:
    """The unproven promises on one line, or nothing."""
    return [f"unproven: {' '.join(missing)}"] if missing else []


@pytest.fixture(scope="session", autouse=True)
def watched_event_loop() -> Iterator[None]:
    """A blocking call from our packages on an event loop's thread raises, in every test and its fixtures."""
    watch = watch_event_loop()
    yield
    watch.deactivate()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A test that runs a command in this process leaves no level and no handler of its to the next one."""
    root, ours = logging.getLogger(), logging.getLogger("loopwright")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture(scope="session")
def homes() -> Iterator[Path]:
    """The folder of all the tests' homes; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="loopwright-tests-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, homes: Path) -> Path:
    """A home of its own for each test, and an environment without keys, endpoints, proxies or settings of ours."""
    home = Path(tempfile.mkdtemp(dir=homes))
    for name in list(os.environ):
        if is_private_setting(name) or name.startswith("XDG_"):
            monkeypatch.delenv(name)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    for name, folder in {
        "XDG_CONFIG_HOME": ".config",
        "XDG_DATA_HOME": ".local/share",
        "XDG_STATE_HOME": ".local/state",
        "XDG_CACHE_HOME": ".cache",
        "XDG_RUNTIME_DIR": ".run",
        "APPDATA": "AppData/Roaming",
        "LOCALAPPDATA": "AppData/Local",
    }.items():
        monkeypatch.setenv(name, str(home / folder))
    return home


@pytest.fixture(autouse=True)
def no_offence(clean_environment: Path) -> Iterator[None]:
    """A refused network access or blocking call fails the test, also when the code under test swallowed it."""
    refused.clear()
    yield
    if refused:
        pytest.fail("\n".join(refused), pytrace=False)


@pytest.fixture(autouse=True)
def no_leak(request: pytest.FixtureRequest, no_offence: None) -> None:
    """Every async test is checked for tasks of ours that outlive it and its fixtures."""
    if asyncio.iscoroutinefunction(getattr(request.node, "obj", None)):
        # Asked for first, so taken down last: after the fixtures that own tasks.
        request.getfixturevalue("no_task_left")


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    """Fails the test when a task that runs code of this project is left; a library's own are its business."""
    yield
    for _ in range(10):  # what was cancelled last may need a few turns of the loop
        if not our_tasks():
            return
        await asyncio.sleep(0)
    left = our_tasks()
    names = "\n".join(map(repr, left))
    for task in left:
        task.cancel()
    await asyncio.wait(left, timeout=5)
    pytest.fail(f"tasks left running:\n{names}", pytrace=False)


def our_tasks() -> list[asyncio.Task[object]]:
    """The other tasks of this loop whose coroutine was written in this project."""
    return [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and is_ours(t)]


def is_ours(task: asyncio.Task[object]) -> bool:
    coroutine = task.get_coro()
    code = getattr(coroutine, "cr_code", None) or getattr(coroutine, "ag_code", None)
    path = Path(code.co_filename) if code else ROOT.parent
    return path.is_relative_to(ROOT) and "site-packages" not in path.parts
