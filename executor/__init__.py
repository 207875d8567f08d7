"""An agent run as data: the loop, the log, and what runs them. Knows no web and no MCP."""

from executor.errors import LoopwrightError
from executor.log import EventLog
from executor.loop import AgenticLoopExecutor
from executor.memory_log import InMemoryLog
from executor.schema import (
    AgenticStepEvent,
    Execution,
    ExecutionHistory,
    StepRecord,
    StepType,
    TaskRequest,
    ToolCall,
    ToolCallRecord,
)
from executor.sqlite_log import SqliteLog
from executor.tools import Tool, ToolContext, ToolFailure

__all__ = [
    "AgenticLoopExecutor",
    "AgenticStepEvent",
    "EventLog",
    "Execution",
    "ExecutionHistory",
    "InMemoryLog",
    "LoopwrightError",
    "SqliteLog",
    "StepRecord",
    "StepType",
    "TaskRequest",
    "Tool",
    "ToolCall",
    "ToolCallRecord",
    "ToolContext",
    "ToolFailure",
]
