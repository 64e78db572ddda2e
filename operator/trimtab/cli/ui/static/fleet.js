// Who works on the run now, and what each does.

import { html } from "/static/dom.js";
import { DASH, clock, count, percent } from "/static/words.js";

const ROLES = ["trainer", "rollout", "dataflow"];

export function Fleet({ detail, now }) {
  const { pods = [], stages = [], conditions = [], trouble, live } = detail.now;
  const order = [...pods].sort((a, b) => ROLES.indexOf(a.role) - ROLES.indexOf(b.role) || (a.id < b.id ? -1 : 1));
  return html`<div class="panel">
    ${trouble && html`<p class="trouble">${trouble}</p>`}
    ${!live && html`<p class="none">Nobody works on this run now. How large its fleet was is among the curves.</p>`}
    ${live && !pods.length && !trouble && html`<p class="none">Its pods are starting.</p>`}
    ${order.length > 0 && html`<section>
      <h2>Pods</h2>
      <table id="pods">
        <thead><tr><th>Pod</th><th>Role</th><th>State</th><th>What it does</th><th class="n">Version</th><th>Tasks</th><th class="n">Samples/s</th><th class="n">Tokens/s</th><th class="n">Done</th><th class="n">Failed</th><th class="n">Up for</th></tr></thead>
        <tbody>${order.map((pod) => html`<tr key=${pod.id}>
          <td class="id">${pod.id}</td>
          <td>${pod.pool ? `${pod.role} · ${pod.pool}` : pod.role}</td>
          <td><span class="state ${pod.state}">${pod.state}</span></td>
          <td class="soft">${pod.doing}</td>
          <td class="n">${versions(pod.versions)}</td>
          <td>${pod.capacity ? html`<${Load} of=${pod} />` : ""}</td>
          <td class="n">${pod.role === "rollout" ? count(pod.samples_per_second ?? 0) : ""}</td>
          <td class="n">${pod.role === "dataflow" ? "" : count(pod.tokens_per_second ?? 0)}</td>
          <td class="n">${pod.role === "rollout" ? count(pod.completed ?? 0) : ""}</td>
          <td class="n" title=${failures(pod.failures)}>${total(pod.failures) || ""}</td>
          <td class="n">${pod.started_at ? clock(now - pod.started_at) : ""}</td>
        </tr>`)}</tbody>
      </table>
    </section>`}
    ${stages.length > 0 && html`<section>
      <h2>Stages</h2>
      <p class="note">What happens to rows between rollout and trainer, over the last balance report of each policy.</p>
      <table id="stages">
        <thead><tr><th>Stage</th><th>Policy</th><th class="n">Groups/s</th><th class="n">Waiting</th><th class="n">Failed</th></tr></thead>
        <tbody>${stages.map((stage) => html`<tr key=${`${stage.policy} ${stage.name}`}>
          <td>${stage.name}</td><td>${stage.policy}</td><td class="n">${count(stage.per_second)}</td><td class="n">${stage.waiting}</td><td class="n">${stage.failed || ""}</td>
        </tr>`)}</tbody>
      </table>
    </section>`}
    ${conditions.length > 0 && html`<section>
      <h2>Conditions</h2>
      <table>
        <thead><tr><th>Condition</th><th>Status</th><th>Reason</th><th>In words</th></tr></thead>
        <tbody>${conditions.map((one) => html`<tr key=${one.type}><td>${one.type}</td><td>${one.status}</td><td>${one.reason}</td><td class="soft">${one.message}</td></tr>`)}</tbody>
      </table>
    </section>`}
  </div>`;
}

function Load({ of }) {
  const share = Math.min(1, (of.in_flight ?? 0) / of.capacity);
  return html`<span class="load" title=${percent(share)}><meter min="0" max="1" value=${share}></meter>${of.in_flight ?? 0} of ${of.capacity}</span>`;
}

function versions(found = {}) {
  const numbers = Object.values(found);
  return numbers.length ? numbers.join(" · ") : DASH;
}

function total(failures = {}) {
  return Object.values(failures).reduce((sum, number) => sum + number, 0);
}

function failures(found = {}) {
  return Object.entries(found).map(([kind, number]) => `${kind}: ${number}`).join("\n");
}
