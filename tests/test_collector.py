"""No full collection stops everybody while a model's libraries are imported, nor because of them afterwards."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from executor.collector import resting
from server import collector
from server.cli import main


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds, enabled = gc.get_threshold(), gc.isenabled()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    if enabled:
        gc.enable()
    else:
        gc.disable()


@pytest.fixture
def unheard_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that a block may "import"."""
    yield "unheard_of"
    sys.modules.pop("unheard_of", None)


def test_nothing_is_collected_while_something_is_imported_and_what_came_is_not_looked_through_again(
    unheard_of: str,
) -> None:
    frozen = gc.get_freeze_count()
    with resting():
        within = gc.isenabled()
        sys.modules[unheard_of] = type(sys)(unheard_of)
    assert (within, gc.isenabled(), gc.get_freeze_count() > frozen) == (False, True, True)


def test_a_block_that_imports_nothing_leaves_no_trace() -> None:
    frozen = gc.get_freeze_count()
    with resting():
        pass
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, frozen)


def test_it_rests_until_the_last_of_several_threads_has_imported() -> None:
    inside, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with resting():
            inside.set()
            may_leave.wait(20)

    thread = threading.Thread(target=other)
    with resting():
        thread.start()
        assert inside.wait(20)
    seen = [gc.isenabled()]
    may_leave.set()
    thread.join(20)
    assert [*seen, gc.isenabled()] == [False, True]


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with resting():
        pass
    assert not gc.isenabled()


def test_a_command_leaves_it_at_work() -> None:
    code = main(["tools", "--config", "no/such/mcp.json"])
    assert (code, gc.isenabled(), gc.get_threshold()) == (2, True, collector.THRESHOLDS)
