"""Both directions between what is promised and what is proved."""

import pytest

from tests.requirements import REQUIREMENTS, proven, requirement, unproven


def test_every_promise_that_a_test_names_is_listed() -> None:
    assert {used: where for used, where in proven().items() if used not in REQUIREMENTS} == {}


def test_every_listed_promise_has_a_test() -> None:
    assert unproven() == []


def test_a_test_cannot_name_a_promise_that_nobody_made() -> None:
    name = "no:such:promise"
    with pytest.raises(KeyError, match=r"no:such:promise.*tests/requirements\.py"):
        requirement(name)


def test_every_promise_is_a_sentence_with_a_source() -> None:
    assert [
        key for key, (sentence, source) in REQUIREMENTS.items() if not sentence or "§" not in source
    ] == []
