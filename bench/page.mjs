// Measures the page in Chromium: node page.mjs PLAN, where PLAN is a file of JSON {chromium, modules, url, what, ...}. Prints JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const plan = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { chromium } = createRequire(plan.modules)("playwright-core");
const browser = await chromium.launch({ executablePath: plan.chromium, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
const devtools = await page.context().newCDPSession(page);
await devtools.send("Performance.enable");

// Seconds of script since the page was opened.
async function script() {
  const { metrics } = await devtools.send("Performance.getMetrics");
  return metrics.find((m) => m.name === "ScriptDuration").value;
}

async function each(times, act) {
  const took = [];
  for (let i = 0; i < times; i++) {
    const before = await script();
    await act(i);
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    took.push(((await script()) - before) * 1000);
  }
  return took;
}

// Stacks whose tree has about so many nodes, ten deep.
function folded(nodes) {
  const lines = [];
  for (let i = 0; i * 4 < nodes; i++) lines.push(`main (a.py);step${i % 7} (a.py);part${i % 61} (a.py);call${i % 509} (b/c.py);f${i} (b/c.py);g${i} (b/c.py);h${i} (b/c.py);k${i} (b/c.py) ${1 + (i % 13)}`);
  return lines.join("\n");
}

const measures = {
  async load() {
    const paints = [];
    let bytes = 0;
    for (let i = 0; i < 9; i++) {
      const fresh = await browser.newContext(), p = await fresh.newPage();
      await p.goto(plan.url);
      await p.locator("main h1, main .note").first().waitFor();
      paints.push(await p.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
      bytes = await p.evaluate(() => [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")].filter((r) => !r.name.includes("/api/")).reduce((sum, r) => sum + r.encodedBodySize, 0));
      await fresh.close();
    }
    return { paints, bytes };
  },
  async flame() {
    await page.route("**/flamegraph?*", (r) => r.fulfill({ body: folded(100000), contentType: "text/plain" }));
    await page.goto(plan.url);
    await page.evaluate((h) => { location.hash = h; }, `#/flame?target=${plan.target}&seconds=1`);
    await page.locator(".stage canvas").waitFor();
    await page.waitForTimeout(1500);
    const walk = ["ArrowDown", "ArrowDown", "ArrowDown", "Enter", "ArrowDown", "Enter", "ArrowDown", "Enter", "Escape", "Escape", "Escape", "Escape", "Escape"];
    return { took: await each(78, (i) => page.keyboard.press(walk[i % walk.length])) };
  },
  async rows() {
    await page.goto(plan.url);
    await page.evaluate((h) => { location.hash = h; }, `#/sql?q=${encodeURIComponent("SELECT range AS n, range * 0.5 AS half, 'row ' || range AS name FROM range(1000000)")}`);
    await page.getByText("1,000,000 rows").first().waitFor({ timeout: 120000 });
    const took = await each(60, (i) => page.evaluate((at) => document.querySelector(".rows").scrollTo(0, at), (i * 7919 * 22) % 22000000));
    return { took, last: await page.evaluate(async () => { document.querySelector(".rows").scrollTo(0, 1e9); await new Promise((r) => setTimeout(r, 300)); return document.querySelector(".rows").innerText.includes("999999"); }) };
  },
  async open() {
    await page.goto(plan.url);
    await page.evaluate((h) => { location.hash = h; }, plan.hash);
    await page.locator("main table, main .cells, main [role=tree]").first().waitFor();
    const busy = async () => (await devtools.send("Performance.getMetrics")).metrics.find((m) => m.name === "TaskDuration").value;
    await page.waitForTimeout((plan.seconds * 1000) / 4);
    const before = await busy(), began = performance.now();
    await page.waitForTimeout((plan.seconds * 3000) / 4);
    return { page: ((await busy()) - before) / ((performance.now() - began) / 1000) };
  },
};
try { console.log(JSON.stringify(await measures[plan.what]())); } finally { await browser.close(); }
