// A view as one file that opens anywhere: no script, nothing fetched. What was drawn is a picture in it, what was
// text stays text.

async function styles(): Promise<string> {
  const links = [...document.querySelectorAll<HTMLLinkElement>('link[rel="stylesheet"]')];
  return (await Promise.all(links.map((l) => fetch(l.href).then((a) => a.text())))).join("\n");
}

// What only works in the page is left out; a field stays as the text in it.
function still(from: HTMLElement): HTMLElement {
  const to = from.cloneNode(true) as HTMLElement,
    drawn = from.querySelectorAll("canvas"),
    fields = from.querySelectorAll<HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement>(
      "input, select, textarea",
    );
  to.querySelectorAll("canvas").forEach((c, i) => {
    const img = document.createElement("img");
    img.src = drawn[i].toDataURL();
    img.alt = c.getAttribute("aria-label") ?? "";
    img.style.width = `${drawn[i].clientWidth}px`;
    c.replaceWith(img);
  });
  to.querySelectorAll("input, select, textarea").forEach((e, i) => {
    const span = document.createElement("span"),
      f = fields[i];
    span.className = "mono";
    span.textContent = f instanceof HTMLSelectElement ? (f.selectedOptions[0]?.textContent ?? "") : f.value;
    e.replaceWith(span);
  });
  for (const e of to.querySelectorAll('.foot, .pop, .ctl.main, .seg [aria-pressed="false"]')) e.remove();
  for (const e of to.querySelectorAll("button")) {
    const span = document.createElement("span");
    span.className = e.className;
    span.append(...e.childNodes);
    if (e.getAttribute("aria-pressed") === "true") span.style.fontWeight = "600";
    e.replaceWith(span);
  }
  for (const a of to.querySelectorAll("a")) a.removeAttribute("href");
  return to;
}

// The styles are put in as text: as an element they would fall under the policy of this page.
export async function save(command: string) {
  const d = document.implementation.createHTMLDocument(document.title),
    css = await styles(),
    meta = (name: string, content: string, attribute = "name") => {
      const m = d.createElement("meta");
      m.setAttribute(attribute, name);
      m.content = content;
      d.head.prepend(m);
    };
  meta("viewport", "width=device-width, initial-scale=1");
  meta("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:", "http-equiv");
  const utf8 = d.createElement("meta");
  utf8.setAttribute("charset", "utf-8");
  d.head.prepend(utf8);
  d.documentElement.lang = "en";
  const theme = document.documentElement.dataset.theme;
  if (theme) d.documentElement.dataset.theme = theme;
  const head = d.createElement("div"),
    main = d.createElement("main");
  head.className = "note info";
  const chosen = [...document.querySelectorAll(".picker .ctl > :not([aria-hidden])")]
    .map((e) => e.textContent)
    .join(" ");
  const saved = new Date().toISOString().slice(0, 19).replace("T", " ");
  head.append(`${document.title}, ${chosen}, saved ${saved} UTC. The same at a terminal: `);
  const code = d.createElement("code");
  code.textContent = command;
  head.append(code);
  main.append(head, ...still(document.getElementById("main")!).childNodes);
  d.body.append(main);
  const a = document.createElement("a");
  a.href = URL.createObjectURL(
    new Blob(
      [`<!doctype html>\n${d.documentElement.outerHTML.replace("</head>", () => `<style>${css}</style></head>`)}`],
      { type: "text/html" },
    ),
  );
  a.download = `probing-${location.hash.replace(/^#\/(\w+).*/, "$1") || "now"}.html`;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10000);
}
