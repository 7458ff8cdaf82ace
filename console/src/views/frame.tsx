/** What stands around every view: where one is, who one is, what is looked at. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { AnyCollection } from "../ui/parts";
import { home, logOut, namespace, read, user } from "../api/session";
import { claims } from "../model/claims";
import { nodes } from "../model/nodes";
import { pods } from "../model/pods";
import { allDevices } from "../model/devices";
import { go, route, to } from "../route";
import { theme, type Theme } from "../ui/theme";

export function Wordmark() {
  return (
    <div class="wordmark">
      <svg viewBox="0 0 32 32" width="26" height="26" aria-hidden="true">
        <rect width="32" height="32" rx="7" class="plate" />
        <path d="M10 26V12a7 7 0 0 1 14 0v2M24 14v4M6 26h9" class="arm" />
        <rect x="20.4" y="18.5" width="7.2" height="5.6" rx="1.4" class="load" />
      </svg>
      <span>davit</span>
    </div>
  );
}

const PLACES: { id: string; text: string; icon: string; of?: AnyCollection; count?: () => number }[] = [
  { id: "cluster", text: "Cluster", icon: "M3 10.5 10 4l7 6.5M5 9.5V16h10V9.5" },
  { id: "nodes", text: "Nodes", icon: "M3 4.5h14v4H3zM3 11.5h14v4H3zM6 6.5h.01M6 13.5h.01", of: nodes },
  { id: "devices", text: "Devices", icon: "M6 6h8v8H6zM8 3v3M12 3v3M8 14v3M12 14v3M3 8h3M3 12h3M14 8h3M14 12h3", count: () => allDevices().length },
  { id: "claims", text: "Claims", icon: "M4 4h8l4 4v8H4zM12 4v4h4M7 11h6M7 13.5h4", of: claims },
  { id: "pods", text: "Pods", icon: "M10 3l6 3.4v7.2L10 17l-6-3.4V6.4zM10 10l6-3.6M10 10v7M10 10 4 6.4", of: pods },
  { id: "activity", text: "Activity", icon: "M3 10h3l2-5 4 10 2-5h3" },
];

function Rail() {
  const here = route.value[0] ?? "cluster";
  return (
    <nav class="rail" aria-label="Main">
      <Wordmark />
      <ul>
        {PLACES.map((place) => {
          place.of?.version.value;
          const denied = place.of?.state.value === "denied";
          const n = place.of ? place.of.size : place.count ? place.count() : 0;
          return (
            <li key={place.id}>
              <a href={to(place.id)} aria-current={here === place.id ? "page" : undefined}>
                <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true"><path d={place.icon} /></svg>
                <span>{place.text}</span>
                {denied ? <span class="n" title="You may not read these">not allowed</span> : n > 0 && <span class="n">{n.toLocaleString("en")}</span>}
              </a>
            </li>
          );
        })}
      </ul>
      <Keys />
    </nav>
  );
}

function Keys() {
  return (
    <dl class="keys" aria-label="Keys">
      <div><dt><kbd>/</kbd></dt><dd>filter</dd></div>
      <div><dt><kbd>↑</kbd> <kbd>↓</kbd></dt><dd>move in a list</dd></div>
      <div><dt><kbd>Enter</kbd></dt><dd>open</dd></div>
      <div><dt><kbd>Esc</kbd></dt><dd>back</dd></div>
    </dl>
  );
}

const MOST_NAMES = 500;

function NamespaceChoice() {
  const [names, setNames] = useState<string[] | null>(null);
  useEffect(() => {
    const end = new AbortController();
    read<{ items: { metadata: { name: string } }[] }>(`/api/v1/namespaces?limit=${MOST_NAMES}`, end.signal).then(
      (list) => setNames(list.items.map((item) => item.metadata.name)),
      () => setNames(null),
    );
    return () => end.abort();
  }, [user.value?.name]);
  const choose = (name: string) => (namespace.value = name.trim());
  if (names === null) {
    return (
      <label class="namespace">
        <span>Namespace</span>
        <input type="text" value={namespace.value} placeholder={`all, or ${home()}`} spellcheck={false} onChange={(event) => choose(event.currentTarget.value)} />
      </label>
    );
  }
  const all = names.includes(namespace.value) || namespace.value === "" ? names : [namespace.value, ...names];
  return (
    <label class="namespace">
      <span>Namespace</span>
      <select value={namespace.value} onChange={(event) => choose(event.currentTarget.value)}>
        <option value="">all</option>
        {all.map((name) => <option key={name} value={name}>{name}</option>)}
      </select>
    </label>
  );
}

const THEMES: { id: Theme; text: string }[] = [
  { id: "system", text: "System" },
  { id: "light", text: "Light" },
  { id: "dark", text: "Dark" },
];

function Bar() {
  return (
    <header class="bar">
      <NamespaceChoice />
      <span class="space" />
      <label class="theme">
        <span class="hidden">Colours</span>
        <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
          {THEMES.map((one) => <option key={one.id} value={one.id}>{one.text}</option>)}
        </select>
      </label>
      <span class="who" title={`Groups: ${user.value?.groups.join(", ") ?? ""}`}>
        {user.value?.name}
        <span class="muted"> by {user.value?.by}</span>
      </span>
      <button type="button" onClick={() => logOut()}>Log out</button>
    </header>
  );
}

function typing(event: KeyboardEvent): boolean {
  const target = event.target as Element;
  return target.closest("input, textarea, select, [contenteditable]") !== null;
}

export function Frame({ title, children }: { title: string; children: ComponentChildren }) {
  const place = route.value.join("/");
  const before = useRef<string | null>(null);
  useEffect(() => {
    document.title = `${title} · davit`;
  }, [title]);
  // one who comes to another page by the keyboard or a screen reader goes on at its title
  useEffect(() => {
    if (before.current !== null && before.current !== place) document.querySelector<HTMLElement>("main h1")?.focus();
    before.current = place;
  }, [place]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.target as HTMLElement;
      if (event.key === "Escape" && target.matches?.("[data-filter]")) return target.blur();
      if (typing(event)) return;
      if (event.key === "/") {
        event.preventDefault();
        document.querySelector<HTMLInputElement>("[data-filter]")?.focus();
      } else if (event.key === "Escape" && route.value.length > 1) {
        go(to(route.value[0]!));
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return (
    <div class="frame">
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.querySelector<HTMLElement>("main h1")?.focus(); }}>Skip to the content</a>
      <Rail />
      <div class="page">
        <Bar />
        <main id="content">{children}</main>
      </div>
    </div>
  );
}
