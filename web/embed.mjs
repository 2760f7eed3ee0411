// Writes the built page as C: node embed.mjs FOLDER HEADER. Each file is compressed once, here, and has its ETag.
// Fails where the page has grown beyond what is promised of it: see LIMITS.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const LIMITS = { first: 40 * 1024, all: 300 * 1024 };
const TYPES = {
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
};

const [folder, header] = process.argv.slice(2);
const names = [
  "index.html",
  ...readdirSync(join(folder, "assets"))
    .sort()
    .map((name) => `assets/${name}`),
];
const html = readFileSync(join(folder, "index.html"), "utf8");
let text = "",
  table = "",
  all = 0,
  first = 0;

names.forEach((name, i) => {
  const plain = readFileSync(join(folder, name));
  const foreign = plain.toString().match(/https?:\/\/(?!www\.w3\.org\/)[\w.-]+/g);
  if (foreign) throw new Error(`${name} names another host: ${foreign}`);
  const packed = gzipSync(plain, { level: 9 });
  all += packed.length;
  if (name === "index.html" || html.includes(name) || /^assets.now-/.test(name)) first += packed.length;
  const etag = createHash("sha256").update(plain).digest("hex").slice(0, 16);
  const path = name === "index.html" ? "/" : `/${name}`;
  const bytes = [];
  for (let at = 0; at < packed.length; at += 32) bytes.push([...packed.subarray(at, at + 32)].join(","));
  text += `static const unsigned char file_${i}[] = {\n${bytes.join(",\n")}};\n`;
  table += `    {"${path}", "${TYPES[name.split(".").pop()]}", "\\"${etag}\\"", file_${i}, sizeof(file_${i})},\n`;
});
for (const [what, size] of Object.entries({ first, all }))
  if (size > LIMITS[what])
    throw new Error(`the page is too large: ${what} ${size} bytes compressed, at most ${LIMITS[what]}`);
writeFileSync(header, `${text}static const struct page_file page_files[] = {\n${table}    {0},\n};\n`);
console.log(`page: ${names.length} files, first load ${first} bytes, all ${all} bytes compressed`);
