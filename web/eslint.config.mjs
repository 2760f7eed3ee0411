// What a compiler does not see in the page's sources. Layout is Prettier's.
import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import ts from "typescript-eslint";

export default defineConfig({ ignores: ["node_modules"] }, js.configs.recommended, ts.configs.recommended, {
  languageOptions: { globals: { console: "readonly", process: "readonly" } },
  rules: {
    "@typescript-eslint/no-explicit-any": "error",
    "@typescript-eslint/no-unused-expressions": "off",
    "max-lines": ["error", 700],
    eqeqeq: "error",
  },
});
