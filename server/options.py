"""Options that several commands have, each said once."""

from __future__ import annotations

import argparse


def add_config(command: argparse.ArgumentParser) -> None:
    """`--config`."""
    command.add_argument(
        "--config", metavar="FILE", help="the mcp.json with the tools (LOOPWRIGHT_MCP_CONFIG)"
    )


def add_agent(command: argparse.ArgumentParser) -> None:
    """`--agent`."""
    command.add_argument(
        "--agent",
        metavar="MODULE:ATTRIBUTE",
        help="your own Pydantic AI agent takes the turns (LOOPWRIGHT_AGENT)",
    )


def add_toolset(command: argparse.ArgumentParser) -> None:
    """`--toolset`."""
    command.add_argument(
        "--toolset",
        action="append",
        metavar="MODULE:ATTRIBUTE",
        help="tools in Python: functions, toolsets, a factory of them (repeatable; LOOPWRIGHT_TOOLSETS)",
    )


def add_storage(command: argparse.ArgumentParser) -> None:
    """`--database` or `--ephemeral`."""
    storage = command.add_mutually_exclusive_group()
    add_database(storage)
    storage.add_argument(
        "--ephemeral", action="store_true", help="keep everything in memory, nothing on disk"
    )


def add_database(command: argparse._ActionsContainer) -> None:
    """`--database`."""
    command.add_argument(
        "--database", metavar="URL", help="sqlite:////absolute/path.db (LOOPWRIGHT_DATABASE_URL)"
    )
