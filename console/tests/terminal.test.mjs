// What the terminal makes of what programs write. `npm test`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { build } from "esbuild";

const bundled = await build({ entryPoints: ["src/terminal/screen.ts"], bundle: true, format: "esm", write: false });
const { Screen } = await import(`data:text/javascript;base64,${Buffer.from(bundled.outputFiles[0].text).toString("base64")}`);

/** A screen of 10 by 4 after some text, and what it answered. */
function after(text, columns = 10, rows = 4) {
  const answers = [];
  const screen = new Screen(columns, rows, (answer) => answers.push(answer));
  screen.write(text);
  const lines = screen.lines.map((line) => line.map((cell) => cell.text).join("").trimEnd());
  return { screen, answers, lines };
}

test("text wraps, scrolls into the history and stays within the screen", () => {
  const { lines, screen } = after("one\r\ntwo\r\n0123456789ab\r\nlast\r\n");
  assert.deepEqual(lines, ["0123456789", "ab", "last", ""]);
  assert.deepEqual(screen.history.map((line) => line.map((cell) => cell.text).join("").trimEnd()), ["one", "two"]);
  assert.ok(screen.lines.every((line) => line.length === 10));
});

test("the cursor goes where it is told, and no further", () => {
  const { lines } = after("\x1b[2;3Hx\x1b[99;99Hy\x1b[Hz\x1b[99999999Aw");
  assert.deepEqual(lines, ["zw", "  x", "", "         y"]);
  assert.deepEqual(after("\x1b[3;4H\x1b[6n").answers, ["\x1b[3;4R"]);
});

test("erasing, inserting and deleting", () => {
  assert.deepEqual(after("abcdef\x1b[3G\x1b[K").lines[0], "ab");
  assert.deepEqual(after("abcdef\x1b[3G\x1b[2P").lines[0], "abef");
  assert.deepEqual(after("abcdef\x1b[3G\x1b[2@").lines[0], "ab  cdef");
  assert.deepEqual(after("a\r\nb\r\nc\x1b[2;1H\x1b[L").lines, ["a", "", "b", "c"]);
  assert.deepEqual(after("a\r\nb\r\nc\x1b[1;1H\x1b[M").lines, ["b", "c", "", ""]);
  assert.deepEqual(after("a\r\nb\x1b[2J").lines, ["", "", "", ""]);
});

test("a region scrolls alone", () => {
  const { lines, screen } = after("a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[3;1H\nx");
  assert.deepEqual(lines, ["a", "c", "x", "d"]);
  assert.equal(screen.history.length, 0);
});

test("colours and their end", () => {
  const { screen } = after("\x1b[1;31mr\x1b[38;5;200mp\x1b[38;2;1;2;3mt\x1b[0mn");
  const styles = screen.lines[0].slice(0, 4).map((cell) => [cell.style.bold, cell.style.fg]);
  assert.deepEqual(styles, [[true, 1], [true, 200], [true, 0x1000000 + 0x010203], [false, null]]);
});

test("full-screen programs give the screen back", () => {
  const { screen } = after("shell\x1b[?1049h\x1b[2J\x1b[Hvi");
  assert.equal(screen.lines[0].map((cell) => cell.text).join("").trimEnd(), "vi");
  screen.write("\x1b[?1049l$");
  assert.equal(screen.lines[0].map((cell) => cell.text).join("").trimEnd(), "shell$");
});

test("titles, clipboards, links and unknown strings are swallowed, and nothing of them is answered", () => {
  const evil = "\x1b]0;title\x07\x1b]52;c;cm0=\x07\x1b]8;;https://x\x1b\\\x1bP$qm\x1b\\\x1b[21t\x1b]2;?\x07\x1b[>c\x1b[?1;2;3u";
  const { lines, answers } = after(`${evil}ok`);
  assert.deepEqual(lines[0], "ok");
  assert.deepEqual(answers, []);
});

test("wide and combining characters", () => {
  const { screen } = after("日e\u0301x");
  assert.deepEqual(screen.lines[0].slice(0, 4).map((cell) => cell.text), ["日", "", "e\u0301", "x"]);
  assert.ok(after(`e${"\u0301".repeat(1000)}`).screen.lines[0][0].text.length <= 8);
});

test("another size keeps the cursor on the screen", () => {
  const { screen } = after("a\r\nb\r\nc\r\nd");
  screen.resize(5, 2);
  assert.deepEqual(screen.lines.map((line) => line.map((cell) => cell.text).join("").trimEnd()), ["c", "d"]);
  assert.deepEqual(screen.cursor, { x: 1, y: 1 });
  screen.resize(20, 6);
  screen.write("\r\nwide enough for this");
  assert.equal(screen.lines[2].map((cell) => cell.text).join("").trimEnd(), "wide enough for this");
});

test("noise does no harm", () => {
  let seed = 7;
  const next = () => (seed = (seed * 1103515245 + 12345) % 2147483648);
  const signs = ["\x1b", "[", ";", "?", "9999", "A", "H", "J", "K", "L", "M", "P", "@", "X", "r", "m", "h", "l", "1049", "6", "\r", "\n", "\b", "\t", "x", "日", "\u0301", "b", "S", "T"];
  const screen = new Screen(20, 6, () => {});
  for (let n = 0; n < 40_000; n++) screen.write(signs[next() % signs.length]);
  assert.equal(screen.lines.length, 6);
  assert.ok(screen.lines.every((line) => line.length === 20 && line.every((cell) => cell !== undefined)));
  assert.ok(screen.history.length <= 2000);
});

test("of a line without an end no more is kept than is asked for", async () => {
  const bundled = await build({ entryPoints: ["src/api/collection.ts"], bundle: true, format: "esm", write: false });
  const { lines } = await import(`data:text/javascript;base64,${Buffer.from(bundled.outputFiles[0].text).toString("base64")}`);
  const read = async (pieces, most) => {
    const body = ReadableStream.from(pieces.map((piece) => new TextEncoder().encode(piece)));
    const all = [];
    for await (const line of lines({ body }, most)) all.push(line);
    return all;
  };
  const endless = Array.from({ length: 2000 }, () => "x".repeat(1000));
  assert.deepEqual(await read(["a\nb", "c\n\n", ...endless, "\nlast"], 5), ["a", "bc", "xxxxx", "last"]);
  assert.deepEqual(await read(["a", "b\nc"]), ["ab", "c"]);
});
