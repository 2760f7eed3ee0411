// A debugging session of VS Code's own client, in the order in which VS Code sends its requests:
//   node debug_client.js LIB PORT PROGRAM LINE
// It attaches, stops at a breakpoint with a condition, looks, steps, assigns a local and disconnects. What it saw is one line of JSON.
const [lib, port, program, line] = process.argv.slice(2);
const { DebugClient } = require(lib + "/main.js");

async function session() {
    const client = new DebugClient("node", "none", "debugpy");
    const seen = {};
    await client.start(Number(port));
    client.defaultTimeout = 20000;
    const initialized = client.waitForEvent("initialized");
    const capabilities = (await client.initializeRequest({ adapterID: "debugpy", clientID: "vscode", linesStartAt1: true, columnsStartAt1: true,
        pathFormat: "path", supportsVariableType: true, supportsVariablePaging: true, supportsRunInTerminalRequest: false })).body;
    seen.capabilities = Object.keys(capabilities).filter(name => capabilities[name]);
    const attached = client.attachRequest({ name: "probing", type: "debugpy", request: "attach", connect: { host: "127.0.0.1", port: Number(port) },
        justMyCode: true });
    await initialized;
    const told = await client.setBreakpointsRequest({ source: { path: program }, breakpoints: [{ line: Number(line), condition: "step % 5 == 0" }],
        lines: [Number(line)], sourceModified: false });
    seen.verified = told.body.breakpoints[0].verified;
    await client.setFunctionBreakpointsRequest({ breakpoints: [] });
    await client.setExceptionBreakpointsRequest({ filters: ["uncaught"] });
    let stopped = client.waitForEvent("stopped");
    await client.configurationDoneRequest();
    await attached;
    const stop = (await stopped).body;
    seen.reason = stop.reason;
    const threadId = stop.threadId;
    seen.threads = (await client.threadsRequest()).body.threads.map(thread => thread.name);
    let frame = (await client.stackTraceRequest({ threadId, startFrame: 0, levels: 20 })).body.stackFrames[0];
    seen.place = [frame.name, frame.line, frame.source.path];
    const scope = (await client.scopesRequest({ frameId: frame.id })).body.scopes[0];
    const variables = (await client.variablesRequest({ variablesReference: scope.variablesReference })).body.variables;
    seen.step = Number(variables.find(each => each.name === "step").value);
    seen.value = (await client.evaluateRequest({ expression: "step * 2", frameId: frame.id, context: "watch" })).body.result;
    seen.words = (await client.completionsRequest({ text: "tota", column: 5, frameId: frame.id })).body.targets.map(each => each.label);
    seen.steps = [];
    for (const step of ["stepInRequest", "stepOutRequest", "nextRequest"]) {
        stopped = client.waitForEvent("stopped");
        await client[step]({ threadId });
        await stopped;
        frame = (await client.stackTraceRequest({ threadId, startFrame: 0, levels: 20 })).body.stackFrames[0];
        seen.steps.push([frame.name, frame.line]);
    }
    await client.setBreakpointsRequest({ source: { path: program }, breakpoints: [], lines: [], sourceModified: false });
    const locals = (await client.scopesRequest({ frameId: frame.id })).body.scopes[0].variablesReference;
    seen.assigned = (await client.setVariableRequest({ variablesReference: locals, name: "stop", value: "'hand'" })).body.value;
    await client.disconnectRequest({ restart: false, terminateDebuggee: false });
    console.log(JSON.stringify(seen));
    process.exit(0);
}

session().catch(error => {
    console.error(error);
    process.exit(1);
});
