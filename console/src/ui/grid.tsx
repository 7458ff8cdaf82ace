/**
 * A list of any length, of which only the rows in sight are drawn.
 *
 * The keyboard moves through it as through a table of a spreadsheet: arrows, Page Up and Down, Home and End; Enter opens.
 * Screen readers are told of all rows by their numbers.
 */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Row } from "../api/collection";
import { go } from "../route";

export interface Column<T> {
  id: string;
  head: string;
  /** A width as CSS grid has it. */
  width: string;
  cell: (row: T) => ComponentChildren;
  /** What to sort by. */
  by?: (row: T) => string | number;
  number?: boolean;
}

const HEIGHT = 32;
const BEYOND = 10;

function sorted<T extends Row>(rows: T[], by: ((row: T) => string | number) | undefined, down: boolean): T[] {
  if (!by) return rows;
  const keyed = rows.map((row, at) => ({ row, key: by(row), at }));
  keyed.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : a.at - b.at));
  if (down) keyed.reverse();
  return keyed.map((one) => one.row);
}

function ariaSort(active: boolean, down: boolean): "none" | "ascending" | "descending" {
  return !active ? "none" : down ? "descending" : "ascending";
}

export function Grid<T extends Row>({ label, rows, columns, href, nothing }: { label: string; rows: T[]; columns: Column<T>[]; href?: ((row: T) => string) | undefined; nothing: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(600);
  const [active, setActive] = useState(-1);
  const [sort, setSort] = useState<{ id: string; down: boolean } | null>(null);
  const by = sort ? columns.find((c) => c.id === sort.id)?.by : undefined;
  const shown = useMemo(() => sorted(rows, by, sort?.down ?? false), [rows, sort?.id, sort?.down]);

  useLayoutEffect(() => {
    const element = box.current!;
    const measure = new ResizeObserver(() => setRoom(element.clientHeight));
    measure.observe(element);
    return () => measure.disconnect();
  }, []);
  useEffect(() => {
    if (active >= shown.length) setActive(shown.length - 1);
  }, [shown.length]);

  const first = Math.max(0, Math.floor(top / HEIGHT) - BEYOND);
  const last = Math.min(shown.length, Math.ceil((top + room) / HEIGHT) + BEYOND);
  const rowId = (at: number) => `${label.replace(/\W+/g, "-")}-row-${at}`;

  const move = (to: number) => {
    const at = Math.max(0, Math.min(shown.length - 1, to));
    const element = box.current!;
    const from = at * HEIGHT;
    if (from < element.scrollTop) element.scrollTop = from;
    else if (from + 2 * HEIGHT > element.scrollTop + element.clientHeight) element.scrollTop = from + 2 * HEIGHT - element.clientHeight;
    setTop(element.scrollTop);
    setActive(at);
  };
  const keys: Record<string, () => void> = {
    ArrowDown: () => move(active + 1),
    ArrowUp: () => move(active - 1),
    PageDown: () => move(active + Math.floor(room / HEIGHT) - 2),
    PageUp: () => move(active - Math.floor(room / HEIGHT) + 2),
    Home: () => move(0),
    End: () => move(shown.length - 1),
    Enter: () => {
      const row = shown[active];
      if (row && href) go(href(row));
    },
  };
  const onKey = (event: KeyboardEvent) => {
    const action = event.target === box.current ? keys[event.key] : undefined;
    if (!action || event.altKey || event.ctrlKey || event.metaKey || shown.length === 0) return;
    event.preventDefault();
    action();
  };
  const onHead = (column: Column<T>) => {
    const same = sort?.id === column.id;
    setSort(!same ? { id: column.id, down: false } : sort.down ? null : { id: column.id, down: true });
  };

  const drawn = [];
  for (let at = first; at < last; at++) {
    const row = shown[at]!;
    drawn.push(
      <div
        key={row.key}
        id={rowId(at)}
        role="row"
        aria-rowindex={at + 2}
        aria-selected={at === active}
        class={`row${at === active ? " active" : ""}${href ? " opens" : ""}`}
        style={{ transform: `translateY(${at * HEIGHT}px)` }}
        onClick={(event) => {
          if (href && !(event.target as Element).closest("a") && getSelection()?.isCollapsed !== false) go(href(row));
        }}
      >
        {columns.map((column, n) => (
          <div key={column.id} role="gridcell" class={column.number ? "number" : undefined}>
            {n === 0 && href ? <a href={href(row)} tabIndex={-1}>{column.cell(row)}</a> : column.cell(row)}
          </div>
        ))}
      </div>,
    );
  }
  const inSight = active >= first && active < last;
  return (
    <div
      ref={box}
      class="grid"
      role="grid"
      tabIndex={0}
      aria-label={label}
      aria-rowcount={shown.length + 1}
      aria-colcount={columns.length}
      aria-activedescendant={inSight ? rowId(active) : undefined}
      style={{ "--columns": columns.map((c) => c.width).join(" ") }}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      onKeyDown={onKey}
      onFocus={(event) => event.target === box.current && active < 0 && shown.length > 0 && setActive(first === 0 ? 0 : first + BEYOND)}
    >
      <div role="rowgroup" class="heads">
        <div role="row" aria-rowindex={1} class="row">
          {columns.map((column) => (
            <div key={column.id} role="columnheader" class={column.number ? "number" : undefined} aria-sort={column.by ? ariaSort(sort?.id === column.id, sort?.down ?? false) : undefined}>
              {column.by ? (
                <button type="button" onClick={() => onHead(column)}>
                  {column.head}
                  <span class="arrow" aria-hidden="true">{sort?.id === column.id ? (sort.down ? "↓" : "↑") : ""}</span>
                </button>
              ) : column.head}
            </div>
          ))}
        </div>
      </div>
      <div role="rowgroup" class="rows" style={{ height: `${shown.length * HEIGHT}px` }}>{drawn}</div>
      {shown.length === 0 && <div role="row" class="none"><div role="gridcell">{nothing}</div></div>}
    </div>
  );
}

/** The rows that hold all words of a filter. */
export function filtered<T extends Row>(rows: T[], filter: string): T[] {
  const words = filter.toLowerCase().split(/\s+/).filter((word) => word !== "");
  if (words.length === 0) return rows;
  return rows.filter((row) => words.every((word) => row.text.includes(word)));
}
