// The page: one entry, a file a view, no file name without its hash but index.html.
import { defineConfig } from "vite";

// The view that opens first is fetched beside the script that asks for it, not after it.
const first = {
  name: "first-view",
  transformIndexHtml: {
    order: "post",
    handler: (_, { bundle }) =>
      Object.values(bundle ?? {})
        .filter((c) => c.type === "chunk" && c.name === "now")
        .map((c) => ({
          tag: "link",
          attrs: { rel: "modulepreload", crossorigin: true, href: `/${c.fileName}` },
          injectTo: "head",
        })),
  },
};

export default defineConfig({
  plugins: [first],
  base: "/",
  build: {
    target: "es2022",
    assetsInlineLimit: 0, // an inlined picture would be a data: URL in a style
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        manualChunks: (id) =>
          /@codemirror|@lezer|style-mod|crelt|w3c-keyname|@marijn/.test(id) ? "editor" : undefined,
      },
    },
  },
});
