// Runs the tests of what the page computes: node tests/run.mjs. Each *.test.ts here is bundled with what it tests, and
// run by Node.js's own test runner.
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { spawnSync } from "node:child_process";
import { build } from "esbuild";

const here = import.meta.dirname,
  folder = mkdtempSync(join(tmpdir(), "page-tests-"));
try {
  const entryPoints = readdirSync(here)
    .filter((name) => name.endsWith(".test.ts"))
    .map((name) => join(here, name));
  await build({
    entryPoints,
    bundle: true,
    platform: "node",
    format: "esm",
    outdir: folder,
    outExtension: { ".js": ".mjs" },
    logLevel: "error",
    jsx: "automatic",
    jsxImportSource: "preact",
  });
  const files = readdirSync(folder).map((name) => join(folder, name));
  process.exitCode =
    spawnSync(process.execPath, ["--test", "--test-reporter=spec", ...files], { stdio: "inherit" }).status ?? 1;
} finally {
  rmSync(folder, { recursive: true, force: true });
}
