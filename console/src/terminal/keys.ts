/** What keys send. */
import type { Screen } from "./screen";

const NAMED: Record<string, string> = {
  Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b", Delete: "\x1b[3~", Insert: "\x1b[2~", PageUp: "\x1b[5~", PageDown: "\x1b[6~",
  F1: "\x1bOP", F2: "\x1bOQ", F3: "\x1bOR", F4: "\x1bOS", F5: "\x1b[15~", F6: "\x1b[17~", F7: "\x1b[18~", F8: "\x1b[19~", F9: "\x1b[20~",
  F10: "\x1b[21~", F11: "\x1b[23~", F12: "\x1b[24~",
};
const CURSOR: Record<string, string> = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };

/** The text for a key that the field for input would not give; null if it would, or if the key is the page's. */
export function keyText(event: KeyboardEvent, screen: Screen): string | null {
  if (event.isComposing || event.metaKey) return null;
  const cursor = CURSOR[event.key];
  if (cursor !== undefined) {
    const modifier = 1 + (event.shiftKey ? 1 : 0) + (event.altKey ? 2 : 0) + (event.ctrlKey ? 4 : 0);
    if (modifier > 1) return `\x1b[1;${modifier}${cursor}`;
    return `\x1b${screen.applicationKeys ? "O" : "["}${cursor}`;
  }
  if (event.ctrlKey && !event.altKey && event.key.length === 1) {
    // copying and pasting with the shift key are the page's
    if (event.shiftKey && /[cv]/i.test(event.key)) return null;
    const code = event.key.toUpperCase().charCodeAt(0);
    if (code >= 0x40 && code <= 0x5f) return String.fromCharCode(code - 0x40);
    return event.key === " " ? "\0" : null;
  }
  if (event.altKey && !event.ctrlKey && event.key.length === 1) return `\x1b${event.key}`;
  if (event.key === "Tab" && event.shiftKey) return "\x1b[Z";
  return NAMED[event.key] ?? null;
}
