// Why the fleet is as large as it is, and what else happened to the run.

import { html } from "/static/dom.js";
import { clock, percent } from "/static/words.js";

const HAPPENED = {
  began: (event, first) => ["run", first ? "began" : "went on", (event.changed ?? []).join("\n")],
  died: (event) => ["trainer", `${event.pod} died and went back to its checkpoint`, event.why],
  ended: (event) => ["run", event.outcome, event.why],
};

export function Decisions({ detail }) {
  const { decision } = detail.now;
  const decisions = detail.decisions.toReversed();
  const first = detail.events.find((event) => event.what === "began");
  const rest = detail.events.filter((event) => event.what in HAPPENED).toReversed();
  return html`<div class="panel">
    ${decision && html`<section>
      <h2>Now</h2>
      <p class="decision"><strong>${decision.current} → ${decision.bounded}</strong> <span class="state">${decision.reason}</span> ${decision.message}</p>
      <p class="note">Mode ${decision.mode}, decided by ${decision.maintainer}${decision.recommended !== decision.bounded ? `; ${decision.recommended} before bounds and rate limits` : ""}.</p>
    </section>`}
    <section>
      <h2>Scaling decisions</h2>
      ${!decisions.length && html`<p class="none">${detail.began?.mode === "Off" ? "None: autoscaling.mode is Off." : "None: the fleet kept its size."}</p>`}
      ${decisions.length > 0 && html`<table id="decisions">
        <thead><tr><th class="n">At</th><th class="n">Step</th><th>Replicas</th><th class="n">Waiting</th><th>Reason</th><th>In words</th><th>By</th></tr></thead>
        <tbody>${decisions.map((one) => html`<tr key=${one.at}>
          <td class="n">${clock(one.t)}</td><td class="n">${one.step}</td><td class="change">${one.before} → ${one.after}</td>
          <td class="n">${one.waiting == null ? "" : percent(one.waiting)}</td><td>${one.reason}</td><td class="soft words">${one.message}</td><td>${one.maintainer}</td>
        </tr>`)}</tbody>
      </table>`}
    </section>
    <section>
      <h2>What else happened</h2>
      <table id="events">
        <tbody>${rest.map((event) => {
          const [who, what, why] = HAPPENED[event.what](event, event === first);
          return html`<tr key=${`${event.what} ${event.at}`}><td class="n">${clock(event.t)}</td><td>${who}</td><td>${what}</td><td class="soft words">${why}</td></tr>`;
        })}</tbody>
      </table>
    </section>
  </div>`;
}
