"""Logs as earlier versions wrote them fold to the same history, and are driven on to the same events."""

from pathlib import Path

import pytest

from executor.outcomes import Recorded
from executor.schema import ExecutionHistory
from tests.fold import line
from tests.make_logs import LOGS, folded, read
from tests.requirements import requirement
from tests.stories import STORIES

GOLDEN = sorted(LOGS.glob("*.jsonl"))


@requirement("state:golden")
@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_a_log_of_an_earlier_version_folds_to_the_history_it_had(path: Path) -> None:
    expected = path.with_suffix(".history.json").read_text(encoding="utf-8")
    assert folded(path.read_text(encoding="utf-8")) == ExecutionHistory.model_validate_json(expected)


@pytest.mark.parametrize("name", STORIES)
def test_the_same_story_is_told_with_the_same_events_today(name: str) -> None:
    """A change of order or wording is no accident: look at the difference, then write that log again."""
    _, then = read((LOGS / f"{name}.jsonl").read_text(encoding="utf-8"))
    assert [told(each) for each in STORIES[name]().log] == [told(each) for each in then]


def told(recorded: Recorded) -> tuple[str, int, str, object]:
    event = recorded.event
    return line(event), event.iteration, event.content, event.tool_call


def test_every_golden_log_has_its_history() -> None:
    stems = {path.stem for path in GOLDEN}
    assert {path.name.removesuffix(".history.json") for path in LOGS.glob("*.history.json")} == stems
    assert stems >= set(STORIES)
