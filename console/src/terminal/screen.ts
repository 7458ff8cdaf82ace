/**
 * What a terminal shows: the part of xterm that shells and full-screen programs use.
 *
 * Programs in containers are strangers. What they write becomes characters in cells and nothing else: titles, clipboards,
 * links and other strings are swallowed, every number has a limit, and the only answers are where the cursor is and what
 * kind of terminal this is.
 */
import { PLAIN, styled, type Style } from "./style";

/** A character with what combines with it; empty behind a wide one. */
export interface Cell {
  text: string;
  style: Style;
}

export type Line = Cell[];

const HISTORY = 2000;
const MOST_PARAMETERS = 32;
const MOST_NUMBER = 9999;
const MOST_COMBINING = 8;

type State = "ground" | "escape" | "charset" | "control" | "string" | "stringEscape";

function blank(style: Style = PLAIN): Cell {
  return { text: " ", style };
}

function isWide(code: number): boolean {
  return (
    (code >= 0x1100 && code <= 0x115f) || (code >= 0x2e80 && code <= 0xa4cf) || (code >= 0xac00 && code <= 0xd7a3) ||
    (code >= 0xf900 && code <= 0xfaff) || (code >= 0xfe30 && code <= 0xfe6f) || (code >= 0xff00 && code <= 0xff60) ||
    (code >= 0xffe0 && code <= 0xffe6) || (code >= 0x1f300 && code <= 0x1f64f) || (code >= 0x1f900 && code <= 0x1f9ff) || (code >= 0x20000 && code <= 0x3fffd)
  );
}

const COMBINING = /^[\p{Mn}\p{Me}\u200d\ufe0f]$/u;
/** The line drawing set of the VT100, from ` to ~. */
const DRAWING = "◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·";

interface Buffer {
  lines: Line[];
  x: number;
  y: number;
  saved: { x: number; y: number; style: Style };
}

export class Screen {
  /** Lines that have left the top, oldest first. */
  history: Line[] = [];
  cursorVisible = true;
  /** Arrow keys send what applications want. */
  applicationKeys = false;
  bracketedPaste = false;
  /** Rises with each change. */
  changes = 0;
  /** Whether a full-screen program has the other buffer. */
  alternate = false;

  private main: Buffer;
  private other: Buffer;
  private style: Style = PLAIN;
  private top = 0;
  private bottom: number;
  private wraps = true;
  private origin = false;
  private insert = false;
  private pendingWrap = false;
  private drawing = [false, false];
  private shift = 0;
  private state: State = "ground";
  private parameters = "";
  private charset = 0;
  private last = " ";

  /** `answer` sends what the terminal itself has to say. */
  constructor(
    public columns: number,
    public rows: number,
    private readonly answer: (text: string) => void,
  ) {
    this.main = this.buffer();
    this.other = this.buffer();
    this.bottom = rows - 1;
  }

  private buffer(): Buffer {
    return { lines: Array.from({ length: this.rows }, () => this.emptyLine()), x: 0, y: 0, saved: { x: 0, y: 0, style: PLAIN } };
  }

  private emptyLine(style: Style = PLAIN): Line {
    return Array.from({ length: this.columns }, () => blank(style));
  }

  private get at(): Buffer {
    return this.alternate ? this.other : this.main;
  }

  get lines(): Line[] {
    return this.at.lines;
  }

  get cursor(): { x: number; y: number } {
    return { x: Math.min(this.at.x, this.columns - 1), y: this.at.y };
  }

  /** Another size. Lines that no longer fit go to the history; long ones are cut. */
  resize(columns: number, rows: number): void {
    if (columns === this.columns && rows === this.rows) return;
    const old = this.rows;
    this.columns = columns;
    this.rows = rows;
    for (const buffer of [this.main, this.other]) {
      for (const line of buffer.lines) {
        line.length = Math.min(line.length, columns);
        while (line.length < columns) line.push(blank());
      }
      while (buffer.lines.length < rows) buffer.lines.push(this.emptyLine());
      if (rows < old) {
        const over = Math.max(0, buffer.y - rows + 1);
        const gone = buffer.lines.splice(0, over);
        if (buffer === this.main) this.remember(gone);
        buffer.y -= over;
        buffer.lines.length = rows;
      }
      buffer.x = Math.min(buffer.x, columns - 1);
      buffer.y = Math.min(buffer.y, rows - 1);
    }
    this.top = 0;
    this.bottom = rows - 1;
    this.pendingWrap = false;
    this.changes++;
  }

  private remember(lines: Line[]): void {
    this.history.push(...lines);
    if (this.history.length > HISTORY) this.history.splice(0, this.history.length - HISTORY);
  }

  write(text: string): void {
    for (const character of text) this.take(character);
    this.changes++;
  }

  private take(c: string): void {
    const code = c.codePointAt(0)!;
    if (this.state === "string" || this.state === "stringEscape") {
      if (code === 0x07 || (this.state === "stringEscape" && c === "\\") || code === 0x18 || code === 0x1a) this.state = "ground";
      else this.state = code === 0x1b ? "stringEscape" : "string";
      return;
    }
    if (code === 0x1b) {
      this.state = "escape";
      return;
    }
    if (code < 0x20 || code === 0x7f) return this.controlCharacter(code);
    if (this.state === "ground") return this.print(c, code);
    if (this.state === "escape") return this.escape(c);
    if (this.state === "charset") {
      this.drawing[this.charset] = c === "0";
      this.state = "ground";
      return;
    }
    if (code >= 0x40 && code <= 0x7e) {
      this.state = "ground";
      return this.control(c, this.parameters);
    }
    if (this.parameters.length < MOST_PARAMETERS * 5) this.parameters += c;
  }

  private controlCharacter(code: number): void {
    const at = this.at;
    if (code === 0x08) {
      at.x = Math.max(0, Math.min(at.x, this.columns - 1) - 1);
      this.pendingWrap = false;
    } else if (code === 0x09) {
      at.x = Math.min(this.columns - 1, (Math.floor(at.x / 8) + 1) * 8);
    } else if (code === 0x0a || code === 0x0b || code === 0x0c) {
      this.lineFeed();
    } else if (code === 0x0d) {
      at.x = 0;
      this.pendingWrap = false;
    } else if (code === 0x0e || code === 0x0f) {
      this.shift = code === 0x0e ? 1 : 0;
    } else if (code === 0x18 || code === 0x1a) {
      this.state = "ground";
    }
  }

  private print(character: string, code: number): void {
    const at = this.at;
    if (code > 0x2ff && COMBINING.test(character)) {
      const before = at.lines[at.y]?.[Math.max(0, at.x - (this.pendingWrap ? 0 : 1))];
      if (before && before.text.length < MOST_COMBINING) before.text += character;
      return;
    }
    let text = character;
    if (this.drawing[this.shift] && code >= 0x60 && code <= 0x7e) text = DRAWING[code - 0x60] ?? character;
    const width = isWide(code) ? 2 : 1;
    if (this.pendingWrap || at.x + width > this.columns) {
      if (this.wraps) {
        at.x = 0;
        this.lineFeed();
      } else at.x = this.columns - width;
      this.pendingWrap = false;
    }
    const line = at.lines[at.y]!;
    if (this.insert) {
      line.splice(at.x, 0, ...Array.from({ length: width }, () => blank()));
      line.length = this.columns;
    }
    line[at.x] = { text, style: this.style };
    if (width === 2 && at.x + 1 < this.columns) line[at.x + 1] = { text: "", style: this.style };
    this.last = text;
    if (at.x + width >= this.columns) {
      at.x = this.columns - 1;
      this.pendingWrap = true;
    } else at.x += width;
  }

  private lineFeed(): void {
    const at = this.at;
    this.pendingWrap = false;
    if (at.y === this.bottom) this.scrollUp(1);
    else if (at.y < this.rows - 1) at.y += 1;
  }

  private scrollUp(n: number): void {
    const { lines } = this.at;
    for (let i = 0; i < Math.min(n, this.bottom - this.top + 1); i++) {
      const gone = lines.splice(this.top, 1);
      if (this.top === 0 && !this.alternate) this.remember(gone);
      lines.splice(this.bottom, 0, this.emptyLine(this.erased()));
    }
  }

  private scrollDown(n: number): void {
    const { lines } = this.at;
    for (let i = 0; i < Math.min(n, this.bottom - this.top + 1); i++) {
      lines.splice(this.bottom, 1);
      lines.splice(this.top, 0, this.emptyLine(this.erased()));
    }
  }

  private erased(): Style {
    return this.style.bg === null ? PLAIN : { ...PLAIN, bg: this.style.bg };
  }

  private escape(c: string): void {
    const at = this.at;
    this.state = "ground";
    switch (c) {
      case "[":
        this.state = "control";
        this.parameters = "";
        break;
      case "]":
      case "P":
      case "X":
      case "^":
      case "_":
        this.state = "string";
        break;
      case "(":
      case ")":
        this.state = "charset";
        this.charset = c === "(" ? 0 : 1;
        break;
      case "7":
        at.saved = { x: at.x, y: at.y, style: this.style };
        break;
      case "8":
        this.restore();
        break;
      case "D":
        this.lineFeed();
        break;
      case "E":
        at.x = 0;
        this.lineFeed();
        break;
      case "M":
        if (at.y === this.top) this.scrollDown(1);
        else if (at.y > 0) at.y -= 1;
        break;
      case "c":
        this.reset();
        break;
    }
  }

  private restore(): void {
    const at = this.at;
    at.x = Math.min(at.saved.x, this.columns - 1);
    at.y = Math.min(at.saved.y, this.rows - 1);
    this.style = at.saved.style;
    this.pendingWrap = false;
  }

  private reset(): void {
    this.alternate = false;
    this.main = this.buffer();
    this.other = this.buffer();
    this.style = PLAIN;
    this.top = 0;
    this.bottom = this.rows - 1;
    this.wraps = true;
    this.origin = this.insert = this.pendingWrap = this.applicationKeys = this.bracketedPaste = false;
    this.drawing = [false, false];
    this.shift = 0;
    this.cursorVisible = true;
  }

  private control(final: string, text: string): void {
    if (text.startsWith("?")) {
      if (final === "h" || final === "l") for (const n of numbers(text.slice(1))) this.privateMode(n, final === "h");
      return;
    }
    if (/[^\d;:]/.test(text)) return;
    const n = numbers(text);
    const one = Math.max(1, n[0] ?? 0);
    const at = this.at;
    this.pendingWrap = this.pendingWrap && final === "m";
    switch (final) {
      case "A": at.y = Math.max(at.y >= this.top ? this.top : 0, at.y - one); break;
      case "B":
      case "e": at.y = Math.min(at.y <= this.bottom ? this.bottom : this.rows - 1, at.y + one); break;
      case "C":
      case "a": at.x = Math.min(this.columns - 1, at.x + one); break;
      case "D": at.x = Math.max(0, at.x - one); break;
      case "E": at.x = 0; at.y = Math.min(this.bottom, at.y + one); break;
      case "F": at.x = 0; at.y = Math.max(this.top, at.y - one); break;
      case "G":
      case "`": at.x = Math.min(this.columns, one) - 1; break;
      case "d": this.place(at.x, one - 1); break;
      case "H":
      case "f": this.place(Math.max(1, n[1] ?? 1) - 1, one - 1); break;
      case "J": this.eraseDisplay(n[0] ?? 0); break;
      case "K": this.eraseLine(n[0] ?? 0); break;
      case "L": this.inLines(() => this.scrollDown(one)); break;
      case "M": this.inLines(() => this.scrollUp(one)); break;
      case "P": this.shiftCells(one, false); break;
      case "@": this.shiftCells(one, true); break;
      case "X": this.fill(at.y, at.x, at.x + one); break;
      case "S": this.scrollUp(one); break;
      case "T": this.scrollDown(one); break;
      case "b": for (let i = 0; i < Math.min(one, this.columns * this.rows); i++) this.print(this.last, this.last.codePointAt(0) ?? 32); break;
      case "c": if ((n[0] ?? 0) === 0) this.answer("\x1b[?6c"); break;
      case "n": this.report(n[0] ?? 0); break;
      case "h":
      case "l": if (n.includes(4)) this.insert = final === "h"; break;
      case "m": this.style = styled(this.style, n); break;
      case "r": this.region(n); break;
      case "s": at.saved = { x: at.x, y: at.y, style: this.style }; break;
      case "u": this.restore(); break;
    }
  }

  private report(what: number): void {
    const { x, y } = this.cursor;
    if (what === 5) this.answer("\x1b[0n");
    else if (what === 6) this.answer(`\x1b[${y + 1};${x + 1}R`);
  }

  private place(x: number, y: number): void {
    const [first, last] = this.origin ? [this.top, this.bottom] : [0, this.rows - 1];
    this.at.x = Math.max(0, Math.min(this.columns - 1, x));
    this.at.y = Math.max(first, Math.min(last, first + y));
  }

  private region(n: number[]): void {
    const top = Math.max(1, n[0] ?? 1) - 1;
    const bottom = Math.min(this.rows, n[1] || this.rows) - 1;
    if (top >= bottom) return;
    this.top = top;
    this.bottom = bottom;
    this.place(0, 0);
  }

  private privateMode(mode: number, on: boolean): void {
    switch (mode) {
      case 1: this.applicationKeys = on; break;
      case 6: this.origin = on; this.place(0, 0); break;
      case 7: this.wraps = on; break;
      case 25: this.cursorVisible = on; break;
      case 2004: this.bracketedPaste = on; break;
      case 47:
      case 1047:
      case 1049: this.exchange(on, mode === 1049); break;
    }
  }

  private exchange(on: boolean, saves: boolean): void {
    if (on === this.alternate) return;
    if (on && saves) this.main.saved = { x: this.main.x, y: this.main.y, style: this.style };
    this.alternate = on;
    if (on) this.other = { ...this.buffer(), x: this.main.x, y: this.main.y };
    else if (saves) this.restore();
    this.top = 0;
    this.bottom = this.rows - 1;
    this.pendingWrap = false;
  }

  private fill(y: number, from: number, to: number): void {
    const line = this.at.lines[y];
    if (!line) return;
    for (let x = from; x < Math.min(to, this.columns); x++) line[x] = blank(this.erased());
  }

  private eraseLine(which: number): void {
    const { x, y } = this.at;
    this.fill(y, which === 0 ? x : 0, which === 1 ? x + 1 : this.columns);
  }

  private eraseDisplay(which: number): void {
    const { y } = this.at;
    if (which === 3) this.history = [];
    if (which === 0 || which === 1) this.eraseLine(which);
    const from = which === 0 ? y + 1 : 0;
    const to = which === 1 ? y : this.rows;
    if (which <= 2) for (let line = from; line < to; line++) this.fill(line, 0, this.columns);
  }

  /** Lines come or go at the cursor, within the region. */
  private inLines(move: () => void): void {
    const { y } = this.at;
    if (y < this.top || y > this.bottom) return;
    const { top } = this;
    this.top = y;
    // what is deleted in the middle of the screen is no history
    const { history } = this;
    this.history = [];
    move();
    this.history = history;
    this.top = top;
    this.at.x = 0;
  }

  private shiftCells(n: number, inserts: boolean): void {
    const { x, y } = this.at;
    const line = this.at.lines[y]!;
    const count = Math.min(n, this.columns - x);
    const blanks = Array.from({ length: count }, () => blank(this.erased()));
    if (inserts) {
      line.splice(x, 0, ...blanks);
      line.length = this.columns;
    } else {
      line.splice(x, count);
      line.push(...blanks);
    }
  }
}

function numbers(text: string): number[] {
  if (text === "") return [];
  return text.split(/[;:]/).slice(0, MOST_PARAMETERS).map((part) => Math.min(MOST_NUMBER, Number(part) || 0));
}
