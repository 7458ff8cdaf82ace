/** How characters look: what the sequences that end in `m` ask for. */

export interface Style {
  fg: number | null;
  bg: number | null;
  bold: boolean;
  faint: boolean;
  italic: boolean;
  underline: boolean;
  inverse: boolean;
}

/** As a character is that nothing was said of. */
export const PLAIN: Style = { fg: null, bg: null, bold: false, faint: false, italic: false, underline: false, inverse: false };
/** Colours above the 256 of the table are 24 bit ones, with this added. */
export const TRUE_COLOUR = 0x1000000;

/** A style after the parameters of one `m`. */
export function styled(before: Style, parameters: number[]): Style {
  const n = parameters.length === 0 ? [0] : parameters;
  let style = { ...before };
  for (let i = 0; i < n.length; i++) {
    const code = n[i]!;
    if (code === 0) style = { ...PLAIN };
    else if (code === 1) style.bold = true;
    else if (code === 2) style.faint = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 7) style.inverse = true;
    else if (code === 22) style.bold = style.faint = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.underline = false;
    else if (code === 27) style.inverse = false;
    else if (code >= 30 && code <= 37) style.fg = code - 30;
    else if (code >= 40 && code <= 47) style.bg = code - 40;
    else if (code >= 90 && code <= 97) style.fg = code - 82;
    else if (code >= 100 && code <= 107) style.bg = code - 92;
    else if (code === 39) style.fg = null;
    else if (code === 49) style.bg = null;
    else if (code === 38 || code === 48) {
      const [colour, used] = longColour(n.slice(i + 1));
      if (code === 38) style.fg = colour;
      else style.bg = colour;
      i += used;
    }
  }
  return style;
}

function longColour(n: number[]): [number | null, number] {
  if (n[0] === 5) return [Math.min(255, n[1] ?? 0), 2];
  if (n[0] !== 2) return [null, n.length];
  const part = (at: number) => Math.min(255, n[at] ?? 0);
  return [TRUE_COLOUR + part(1) * 65536 + part(2) * 256 + part(3), 4];
}

/** A colour above the first sixteen, which the style sheet names, as CSS has it. */
export function colour(of: number): string {
  if (of >= TRUE_COLOUR) return `#${(of - TRUE_COLOUR).toString(16).padStart(6, "0")}`;
  if (of >= 232) return `rgb(${Array(3).fill(8 + (of - 232) * 10).join(" ")})`;
  const step = (n: number) => (n === 0 ? 0 : 55 + n * 40);
  const at = of - 16;
  return `rgb(${step(Math.floor(at / 36))} ${step(Math.floor(at / 6) % 6)} ${step(at % 6)})`;
}
