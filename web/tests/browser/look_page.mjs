// The page that `glinfer look` writes, as a person uses it: gives
// {"images": […], "steps": {name: what is to be seen then}, "console": […], "errors": […], "asked": […]}.

/** In the page: every picture, once it is there. */
async function images() {
  const all = [...document.querySelectorAll("figure img")];
  for (const image of all) image.loading = "eager";
  await Promise.all(all.map((image) => image.decode().catch(() => null)));
  return all.map(({ src, alt, naturalWidth, naturalHeight, width, height }) => {
    return { file: src.split("/").slice(-2).join("/"), alt, naturalWidth, naturalHeight, width, height };
  });
}

/** In the page: the pictures and the headings that can be seen, and what the address says. */
function seen() {
  const visible = (selector) => [...document.querySelectorAll(selector)].filter((each) => each.offsetParent !== null);
  const viewer = document.getElementById("viewer");
  return {
    files: visible("figure a").map((link) => link.getAttribute("href")),
    headings: visible("h2").map((heading) => heading.textContent),
    hash: location.hash,
    layer: document.getElementById("layer").value,
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    focus: document.activeElement.getAttribute("href"),
    open: viewer.open,
    title: viewer.open ? document.getElementById("viewer-title").textContent : null,
    picture: viewer.open ? document.getElementById("viewer-picture").getAttribute("src") : null,
    pictureWidth: viewer.open ? document.getElementById("viewer-picture").clientWidth : null,
    paper: getComputedStyle(document.body).backgroundColor,
    shown: visible("figure img")[0]?.currentSrc ?? null,
  };
}

async function use(page, steps) {
  const step = async (name) => (steps[name] = await page.evaluate(seen));
  await step("opened");
  await page.getByText("Attention", { exact: true }).first().click();
  await step("attention");
  await page.getByLabel("Next block").click();
  await step("first block");
  await page.getByLabel("Block", { exact: true }).selectOption("1");
  await page.locator("input[name=kind]:checked").press("ArrowRight");
  await step("by key");
  await page.getByText("Everything", { exact: true }).click();
  await step("block 1 of everything");
  await page.locator("figure a:visible").first().focus();
  await page.keyboard.press("Enter");
  await step("viewer");
  await page.keyboard.press("ArrowRight");
  await step("viewer, next");
  await page.getByText("Full size").click();
  await page.waitForFunction(() => document.getElementById("viewer-picture").complete);
  await step("viewer, full");
  await page.keyboard.press("Escape");
  // The browser gives the focus back to the first picture; the page's event of closing, to the last one, comes later.
  await page.waitForFunction(() => {
    return document.activeElement.getAttribute("href") === document.getElementById("viewer-picture").getAttribute("src");
  });
  await step("closed");
}

/** Opens the page at an address, on a desktop, on a dark phone, with an odd address, and without scripts. */
export async function look(browser, address) {
  const said = { console: [], errors: [], asked: [] };
  const pages = [];
  const open = async (options, url = address) => {
    const page = await browser.newPage(options);
    pages.push(page);
    page.on("console", (message) => said.console.push(`${message.type()}: ${message.text()}`));
    page.on("pageerror", (error) => said.errors.push(String(error)));
    page.on("requestfailed", (request) => said.errors.push(`${request.url()} ${request.failure()?.errorText}`));
    page.on("request", (request) => said.asked.push(request.url()));
    await page.goto(url);
    return page;
  };
  try {
    const page = await open({ viewport: { width: 1280, height: 900 }, colorScheme: "light" });
    const made = { images: await page.evaluate(images), steps: {} };
    await use(page, made.steps);
    const phone = await open({ viewport: { width: 360, height: 700 }, colorScheme: "dark" }, `${address}#kind=hidden&layer=1`);
    await phone.waitForFunction(() => {
      const images = [...document.querySelectorAll("figure img")];
      return images.find((image) => image.offsetParent !== null).currentSrc;
    });
    made.steps.phone = await phone.evaluate(seen);
    await phone.locator("figure a:visible").first().click();
    made.steps["phone viewer"] = await phone.evaluate(seen);
    await phone.emulateMedia({ media: "print" });
    await phone.waitForFunction(() => !document.querySelector("figure img:not([hidden] *)").currentSrc.includes("-dark"));
    made.steps.printed = await phone.evaluate(seen);
    const odd = await open({}, `${address}#kind=nothing&layer=99`);
    made.steps.odd = await odd.evaluate(seen);
    const without = await open({ javaScriptEnabled: false });
    made.steps.without = await without.locator("figure img:visible").count();
    return { ...made, ...said };
  } finally {
    for (const page of pages) await page.close();
  }
}
