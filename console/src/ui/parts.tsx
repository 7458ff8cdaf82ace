/** The small pieces that all views are made of. */
import { Component, type ComponentChildren } from "preact";
import type { Collection, Row, State, Stored } from "../api/collection";
import { namespace } from "../api/session";
import { age } from "../model/amounts";
import { now } from "./clock";

export type Tone = "ok" | "warn" | "bad" | "held" | "quiet";

const TONES: Record<string, Tone> = {
  Ready: "ok", Running: "ok", Healthy: "ok", True: "ok", live: "ok",
  Pending: "warn", Waiting: "warn", Terminating: "warn", Cordoned: "warn", Tainted: "warn", Unknown: "warn", Allocated: "quiet",
  NotReady: "bad", Refused: "bad", Failed: "bad", Unhealthy: "bad",
  Held: "held", "In use": "held",
};

/** How a state is to be coloured. The word stands beside the colour always. */
export function toneOf(state: string): Tone {
  return TONES[state] ?? "quiet";
}

export function Mark({ state, tone = toneOf(state) }: { state: string; tone?: Tone }) {
  return <span class={`mark ${tone}`}>{state}</span>;
}

export function Ago({ at }: { at: number }) {
  if (!at) return <span class="muted">–</span>;
  return <time dateTime={new Date(at).toISOString()} title={new Date(at).toLocaleString()}>{age(at, now.value)}</time>;
}

/** How much of something is used: a bar, and the numbers in words beside it. */
export function Meter({ parts, total, label }: { parts: { n: number; tone: Tone }[]; total: number; label: string }) {
  return (
    <span class="meter" role="img" aria-label={label}>
      {parts.map((part, at) => (
        <span key={at} class={`part ${part.tone}`} style={{ width: `${total > 0 ? Math.min(100, (part.n / total) * 100) : 0}%` }} />
      ))}
    </span>
  );
}

export function Panel({ title, aside, children, wide }: { title: ComponentChildren; aside?: ComponentChildren; children: ComponentChildren; wide?: boolean }) {
  return (
    <section class={`panel${wide ? " wide" : ""}`}>
      <header>
        <h2>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}

export function Nothing({ children }: { children: ComponentChildren }) {
  return <p class="nothing">{children}</p>;
}

/** What stands in the place of what could not be read. Nothing if it could. */
export function Hindrance({ of, what }: { of: Collection<Stored & never, Row> | AnyCollection; what: string }) {
  const state: State = of.state.value;
  const why = of.why.value;
  if (state === "denied") {
    return (
      <div class="hindrance" role="status">
        <strong>You may not read {what}{of.kind.namespaced ? (namespace.value === "" ? " of all namespaces" : ` of namespace ${namespace.value}`) : ""}.</strong>
        <p>{why}</p>
        {of.kind.namespaced && <p>If you may read them in one namespace, choose it above.</p>}
        <button type="button" onClick={() => of.again()}>Try again</button>
      </div>
    );
  }
  if (state === "absent") return <div class="hindrance" role="status"><strong>This cluster does not serve {what}.</strong></div>;
  if (state === "broken") {
    return <div class="hindrance" role="status"><strong>The {what} cannot be read just now; trying again.</strong><p>{why}</p></div>;
  }
  return null;
}

/** What others wrote may have a form of its own: then this stands in its place, until `of` is another, and the rest goes on. */
export class Guarded extends Component<{ what: string; of: string; children: ComponentChildren }, { of: string; failed: boolean }> {
  override state = { of: this.props.of, failed: false };

  static getDerivedStateFromError() {
    return { failed: true };
  }

  static getDerivedStateFromProps(props: { of: string }, state: { of: string }) {
    return props.of === state.of ? null : { of: props.of, failed: false };
  }

  override render() {
    if (!this.state.failed) return this.props.children;
    return <div class="hindrance" role="status"><strong>{this.props.what} is in a form that is not known.</strong></div>;
  }
}

/** Where an object should be shown that another namespace has than the one that is looked at. */
export function Elsewhere({ of }: { of: string }) {
  return (
    <div class="hindrance" role="status">
      <strong>Only namespace {namespace.value} is looked at; this is in {of}.</strong>
      <button type="button" onClick={() => (namespace.value = of)}>Look at {of}</button>
    </div>
  );
}

/** A collection of anything. */
export interface AnyCollection {
  state: { value: State };
  why: { value: string };
  version: { value: number };
  size: number;
  kind: { namespaced: boolean; plural: string };
  again(): void;
}

/** Tabs by links, so that each has an address. */
export function Tabs({ label, tabs, current }: { label: string; tabs: { id: string; text: ComponentChildren; href: string }[]; current: string }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.id} href={tab.href} aria-current={tab.id === current ? "page" : undefined}>{tab.text}</a>
      ))}
    </nav>
  );
}

/** Buttons of which one is pressed: what to show. */
export function Choice({ label, options, value, onChoose }: { label: string; options: { id: string; text: string; n?: number; tone?: Tone }[]; value: string; onChoose: (id: string) => void }) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {options.map((option) => (
        <button key={option.id} type="button" aria-pressed={option.id === value} onClick={() => onChoose(option.id)}>
          {option.tone && <span class={`dot ${option.tone}`} aria-hidden="true" />}
          {option.text}
          {option.n !== undefined && <span class="n">{option.n.toLocaleString("en")}</span>}
        </button>
      ))}
    </div>
  );
}

/** The field that filters a list; `/` leads to it. */
export function Filter({ value, onInput, what }: { value: string; onInput: (text: string) => void; what: string }) {
  return (
    <label class="filter">
      <span class="hidden">Filter {what}</span>
      <input type="search" data-filter placeholder={`Filter ${what}`} value={value} onInput={(event) => onInput(event.currentTarget.value)} spellcheck={false} autocomplete="off" />
      <kbd aria-hidden="true">/</kbd>
    </label>
  );
}

/** The head of a page. The title takes the focus when one comes here. */
export function Head({ title, above, children }: { title: ComponentChildren; above?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <div class="head">
      <div class="title">
        {above && <div class="above">{above}</div>}
        <h1 tabIndex={-1}>{title}</h1>
      </div>
      {children}
    </div>
  );
}

/** Names with values. */
export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
