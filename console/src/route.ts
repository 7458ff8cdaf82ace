/** Where in the console one is: the part of the address after `#`. Names of objects stand there, nothing else. */
import { signal } from "@preact/signals";

function parts(): string[] {
  const text = location.hash.replace(/^#\/?/, "");
  return text.split("/").filter((part) => part !== "").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
}

export const route = signal<string[]>(parts());
addEventListener("hashchange", () => (route.value = parts()));

/** The address of a place: `to("pods", namespace, name)`. */
export function to(...place: string[]): string {
  return `#/${place.map(encodeURIComponent).join("/")}`;
}

export function go(address: string): void {
  location.hash = address;
}
