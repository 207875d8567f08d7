"""Of a server that does not start, the cause is shown, and not what led up to it."""

from tool_clients.last_words import LAST_WORDS, last_words

TRACEBACK = """starting
Traceback (most recent call last):
  File "/somewhere/server.py", line 3, in <module>
    import mcp
ModuleNotFoundError: No module named 'mcp'
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 9, in main
    | ConnectionError: no route
    +------------------------------------
"""


def test_a_traceback_is_told_by_its_last_line() -> None:
    assert last_words(TRACEBACK) == "ModuleNotFoundError: No module named 'mcp'"
    assert last_words(f"{TRACEBACK}npm ERR! code 1\n") == (
        "ModuleNotFoundError: No module named 'mcp'\nnpm ERR! code 1"
    )
    assert last_words(GROUP) == "ConnectionError: no route"
    assert last_words("Traceback (most recent call last):\n") == ""


def test_of_other_words_the_last_whole_lines_are_kept() -> None:
    assert last_words("\n  one\n\ntwo  \n") == "one\ntwo"
    assert last_words("") == ""
    assert last_words(f"{'a' * 200}\n{'b' * 150}\nc\n") == f"{'b' * 150}\nc"
    assert last_words("a" * 1_000 + "end") == ("a" * 1_000 + "end")[-LAST_WORDS:]
