"""How fast it is: run by hand with `scripts/bench`, never a test. docs/performance.md has the figures."""
