/** Events about one object, as lines. */
import { events, type EventRow } from "../model/events";
import { Ago, Hindrance, Mark, Nothing } from "../ui/parts";

const MOST = 200;

export function EventLines({ about }: { about: (event: EventRow) => boolean }) {
  events.version.value;
  const found = events.rows().filter(about).slice(0, MOST);
  return (
    <div class="events">
      <Hindrance of={events} what="events" />
      {found.length === 0 && events.state.value === "live" && <Nothing>No events. They are kept for an hour.</Nothing>}
      <ul class="list">
        {found.map((event) => (
          <li key={event.key}>
            <div class="line tall">
              <span class="when muted"><Ago at={event.at} /></span>
              <Mark state={event.reason} tone={event.warning ? "warn" : "quiet"} />
              <span class="why">{event.message}{event.count > 1 && <span class="muted"> ×{event.count}</span>}<span class="muted"> {event.from}</span></span>
            </div>
          </li>
        ))}
      </ul>
    </div>
  );
}
