"""Write the golden logs under `tests/logs/` from the stories: `python -m tests.make_logs [--all]`.

A log that is there already is left as it is, since it stands for what an earlier version wrote; `--all` writes
every one again, for a change of the log format only. `<name>.jsonl`: the execution's id, creation and request on the
first line, then one event a line. `<name>.history.json`: the history that every later version must fold it to.
"""

import json
import sys
from pathlib import Path
from typing import Final

from executor.history import history
from executor.outcomes import Recorded
from executor.schema import AgenticStepEvent, ExecutionHistory, TaskRequest
from executor.state import State, replay
from tests.fold import CREATED_AT, EXECUTION_ID, Story
from tests.stories import STORIES

LOGS: Final = Path(__file__).parent / "logs"


def written(story: Story) -> str:
    """The story's log as lines of JSON."""
    head = {
        "execution_id": EXECUTION_ID,
        "created_at": CREATED_AT,
        "request": story.request.model_dump(mode="json"),
    }
    events = [
        {"event": recorded.event.model_dump(mode="json"), "private": recorded.private}
        for recorded in story.log
    ]
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in (head, *events))


def read(text: str) -> tuple[State, list[Recorded]]:
    """A log as lines of JSON: its events, and the state they fold to."""
    head, *rest = (json.loads(each) for each in text.splitlines())
    # JSON is read in JSON mode, in which a string may be an enum's value
    request = TaskRequest.model_validate_json(json.dumps(head["request"]))
    events = (AgenticStepEvent.model_validate_json(json.dumps(each["event"])) for each in rest)
    log = [Recorded(event, each["private"]) for event, each in zip(events, rest, strict=True)]
    return replay(State(head["execution_id"], request, head["created_at"]), log), log


def folded(text: str) -> ExecutionHistory:
    """The history that a log, as lines of JSON, is folded to."""
    state, log = read(text)
    return history(state.execution(), log)


def main(*, everything: bool) -> None:
    for name, tell in STORIES.items():
        path = LOGS / f"{name}.jsonl"
        if path.exists() and not everything:
            continue
        text = written(tell())
        path.write_text(text, encoding="utf-8")
        expected = folded(text).model_dump_json(indent=2) + "\n"
        path.with_suffix(".history.json").write_text(expected, encoding="utf-8")


if __name__ == "__main__":
    main(everything="--all" in sys.argv)
