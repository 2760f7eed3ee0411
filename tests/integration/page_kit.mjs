// Drives a browser over the page: node page_kit.mjs PLAN, where PLAN is a file of JSON: {chromium, scheme, width, height, pictures, url, steps}.
// A step is [what, ...words]; what each found out is printed as one JSON array, with all console messages at the end.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const plan = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { chromium } = createRequire(plan.modules)("playwright-core");
const consoleLines = [], found = [];
const axe = plan.axe ? readFileSync(plan.axe, "utf8") : "";

const browser = await chromium.launch({ executablePath: plan.chromium, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ colorScheme: plan.scheme ?? "light", viewport: { width: plan.width ?? 1280, height: plan.height ?? 800 } });
page.setDefaultTimeout(plan.patience ?? 45000); // a busy machine may take its time
page.on("console", (m) => consoleLines.push(`${m.type()}: ${m.text()}${m.location().url ? ` (${m.location().url})` : ""}`));
page.on("pageerror", (e) => consoleLines.push(`error: ${e.message}`));
page.on("dialog", (d) => { consoleLines.push(`dialog: ${d.message()}`); void d.dismiss(); });
page.on("request", (r) => { if (!r.url().startsWith(plan.url.split("/").slice(0, 3).join("/"))) consoleLines.push(`request: ${r.url()}`); });

const steps = {
  open: (hash) => page.evaluate((h) => { location.hash = h; }, hash),
  see: (text) => page.getByText(text, { exact: false }).first().waitFor(),
  find: (selector) => page.locator(selector).first().waitFor(),
  gone: (selector) => page.locator(selector).waitFor({ state: "detached" }),
  text: (selector) => page.locator(selector ?? "body").first().innerText(),
  count: (selector) => page.locator(selector).count(),
  click: (selector) => page.locator(selector).first().click(),
  drag: async (selector, from, to) => {
    const { x, y, width, height } = await page.locator(selector).first().boundingBox();
    await page.mouse.move(x + width * from, y + height / 2);
    await page.mouse.down();
    await page.mouse.move(x + width * to, y + height / 2, { steps: 4 });
    await page.mouse.up();
  },
  choose: async (selector, value) => { await page.locator(`${selector} option[value="${value}"]`).waitFor({ state: "attached" }); await page.locator(selector).selectOption(value); },
  size: (width, height) => page.setViewportSize({ width, height }),
  scheme: (colorScheme) => page.emulateMedia({ colorScheme }),
  press: (key) => page.keyboard.press(key),
  type: (text) => page.keyboard.type(text),
  evaluate: (code) => page.evaluate(code),
  wide: () => page.evaluate("document.documentElement.scrollWidth - innerWidth"),
  // Where the page scrolls sideways, what reaches beyond its right edge.
  outside: () => page.evaluate(() => (document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("*")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => `${e.tagName} ${e.className}: ${(e.textContent ?? "").slice(0, 60)}`).slice(0, 12))),
  // What breaks the rules of accessibility. The policy of the page lets no script in but its own: this one comes through the debugger's door.
  axe: async (part) => {
    await page.evaluate("if (!globalThis.axe) " + `{ ${axe} }`);
    const { violations } = await page.evaluate((p) => globalThis.axe.run(p ?? document, { resultTypes: ["violations"] }), part);
    return violations.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.target.join(" ")).join(", ")}`);
  },
  // The text of the file that a click saves.
  saved: async (key) => {
    const [download] = await Promise.all([page.waitForEvent("download"), page.keyboard.press(key)]);
    return readFileSync(await download.path(), "utf8");
  },
  sleep: (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000)),
  // The test does something meanwhile: it is told by a file, and tells by another.
  meet: async (name) => {
    writeFileSync(`${plan.folder}/${name}.here`, "");
    for (let i = 0; i < 600 && !existsSync(`${plan.folder}/${name}.go`); i++) await steps.sleep(0.1);
  },
  picture: async (name, part) => { if (plan.pictures) await (part ? page.locator(part) : page).screenshot({ path: `${plan.pictures}/${name}.png` }); },
};

try {
  await page.goto(plan.url);
  for (const [what, ...words] of plan.steps) {
    try { found.push((await steps[what](...words)) ?? null); }
    catch (e) { throw new Error(`${what} ${words}: ${e.message}\n${await page.evaluate("document.body.innerText")}`); }
  }
} finally {
  await browser.close();
}
console.log(JSON.stringify({ found, consoleLines }));
