"""The promises of Loopwright, each proved from the outside: import helpers as `from tests.x import y`."""
