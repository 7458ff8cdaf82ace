// Builds the files that the API server embeds into the folder that is named: the page, one script, one style sheet, the
// reader of YAML (loaded when it is needed) and the icon. The names never change; the server tells versions by ETag.
import { build } from "esbuild";
import { copyFile, mkdir, readdir, rm } from "node:fs/promises";

const out = process.argv[2] ?? "dist";
await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await build({
  entryPoints: { console: "src/main.tsx", yaml: "src/yaml.ts", style: "src/style.css" },
  bundle: true,
  splitting: false,
  external: ["./yaml.js"],
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  outdir: out,
  logLevel: "warning",
});
for (const file of await readdir("static")) await copyFile(`static/${file}`, `${out}/${file}`);
