// Drive the page of examples/browser with a headless browser, as a visitor would: node browser_page.mjs URL browser.
import { chromium } from "playwright-core";

const [url, executablePath, screenshot] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ viewport: { width: 900, height: 800 } });
const requests = [];
const failures = [];
page.on("request", (request) => requests.push(request.url()));
page.on("pageerror", (error) => failures.push(String(error)));
page.on("console", (message) => { if (message.type() === "error") failures.push(message.text()); });
await page.goto(url);
await page.waitForSelector("body[data-ready]", { timeout: 60000 });

const box = await page.locator("#drawing").boundingBox();
async function stroke(points) {
  const at = ([x, y]) => [box.x + x * box.width, box.y + y * box.height];
  await page.mouse.move(...at(points[0]));
  await page.mouse.down();
  for (const point of points.slice(1)) await page.mouse.move(...at(point), { steps: 8 });
  await page.mouse.up();
}
const numbers = async () => (await page.locator("#bars span:last-child").allTextContents()).map(Number);
const status = () => page.locator("#status").textContent();

await page.click("#labels button:nth-of-type(1)");
const early = await status();
// a four, taught as a nine: a label that the network does not expect
await stroke([[0.35, 0.1], [0.2, 0.55], [0.8, 0.55]]);
await stroke([[0.65, 0.1], [0.65, 0.9]]);
await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("I see"));
const seen = await status();
const before = await numbers();
for (let press = 0; press < 12; press++) {
  await page.click("#labels button:nth-of-type(10)");
  const count = `after ${5 * (press + 1)} updates`;
  await page.waitForFunction((text) => document.getElementById("status").textContent.includes(text), count);
}
const after = await numbers();
const points = (await page.locator("#curve polyline").getAttribute("points")).trim().split(" ").length;
if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
await page.setInputFiles("#picture", { name: "x.png", mimeType: "image/png", buffer: Buffer.from("no picture") });
await page.waitForFunction(() => document.getElementById("status").textContent.includes("no picture"));
await browser.close();
console.log(JSON.stringify({ early, seen, before, after, points, failures, requests }));
