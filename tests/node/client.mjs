// What a client of the TypeScript SDK meets; tests/test_node_client.py runs it and reads what it prints.
//
//     node client.mjs URL                 over streamable HTTP
//     node client.mjs -- COMMAND ARG…     over stdio
//
// Each line of stdout is one JSON object: {step, …}.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

// The SDK's own limit is 60,000.
const TIMEOUT = 1500;

const [first, command, ...args] = process.argv.slice(2);
const transport =
  first === "--"
    ? new StdioClientTransport({ command, args, env: process.env })
    : new StreamableHTTPClientTransport(new URL(first));

const say = (step, value) => console.log(JSON.stringify({ step, ...value }));

const client = new Client({ name: "node", version: "1" });
await client.connect(transport);
// From here on the client checks structured content against the output schemas.
const { tools } = await client.listTools();
say("tools", { names: tools.map((tool) => tool.name) });

const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options);

try {
  await call("execute_task", { prompt: "Take your time." }, { timeout: TIMEOUT });
  say("answered", {});
} catch (error) {
  say("gave up", { code: error.code });
}

const newest = (await call("get_execution", {})).structuredContent.executions[0];
say("newest", { status: newest.status });
const done = await call("get_execution", { execution_id: newest.execution_id });
say("fetched", { status: done.structuredContent.status, answer: done.structuredContent.answer });

const refused = await call("execute_task", { prompt: "p", max_iterations: 500 });
say("refused", { isError: refused.isError, ...refused.structuredContent });
const unknown = await call("get_execution", { execution_id: "nope" });
say("unknown", { isError: unknown.isError, code: unknown.structuredContent.error.code });

await client.close();
