// The page: one entry, a file a view, no file name without its hash but index.html.
import { defineConfig } from "vite";

export default defineConfig({
  base: "/",
  build: {
    target: "es2022",
    assetsInlineLimit: 0, // an inlined picture would be a data: URL in a style
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    reportCompressedSize: false,
    rollupOptions: { output: { manualChunks: (id) => (/@codemirror|@lezer|style-mod|crelt|w3c-keyname|@marijn/.test(id) ? "editor" : undefined) } },
  },
});
