"""An agent run as data: the loop, the log, and what runs them. Knows no web and no MCP."""

from executor.errors import LoopwrightError
from executor.loop import AgenticLoopExecutor
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
from executor.tools import Tool, ToolContext, ToolFailure

__all__ = [
    "AgenticLoopExecutor",
    "AgenticStepEvent",
    "Execution",
    "ExecutionHistory",
    "LoopwrightError",
    "StepRecord",
    "StepType",
    "TaskRequest",
    "Tool",
    "ToolCall",
    "ToolCallRecord",
    "ToolContext",
    "ToolFailure",
]
