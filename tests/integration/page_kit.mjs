// Drives a browser over the page: node page_kit.mjs PLAN, where PLAN is a file of JSON: {chromium, scheme, width, height, pictures, url, steps}.
// A step is [what, ...words]; what each found out is printed as one JSON array, with all that the console said at the end.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const plan = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { chromium } = createRequire(plan.modules)("playwright-core");
const said = [], found = [];

const browser = await chromium.launch({ executablePath: plan.chromium, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ colorScheme: plan.scheme ?? "light", viewport: { width: plan.width ?? 1280, height: plan.height ?? 800 } });
page.setDefaultTimeout(20000);
page.on("console", (m) => said.push(`${m.type()}: ${m.text()}`));
page.on("pageerror", (e) => said.push(`error: ${e.message}`));
page.on("dialog", (d) => { said.push(`dialog: ${d.message()}`); void d.dismiss(); });
page.on("request", (r) => { if (!r.url().startsWith(plan.url.split("/").slice(0, 3).join("/"))) said.push(`request: ${r.url()}`); });

const steps = {
  open: (hash) => page.evaluate((h) => { location.hash = h; }, hash),
  see: (text) => page.getByText(text, { exact: false }).first().waitFor(),
  find: (selector) => page.locator(selector).first().waitFor(),
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
  press: (key) => page.keyboard.press(key),
  type: (text) => page.keyboard.type(text),
  evaluate: (code) => page.evaluate(code),
  wide: () => page.evaluate("document.documentElement.scrollWidth - innerWidth"),
  picture: async (name) => { if (plan.pictures) await page.screenshot({ path: `${plan.pictures}/${name}.png` }); },
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
console.log(JSON.stringify({ found, said }));
