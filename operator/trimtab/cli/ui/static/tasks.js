// The tasks that were given up, and why.

import { html, useEffect, useState } from "/static/dom.js";
import { moment } from "/static/words.js";

export function Tasks({ feed, detail }) {
  const { live, given_up: heard = [] } = detail.now;
  const [asked, answer] = useState({ tasks: null, error: "" });
  useEffect(() => {
    if (live) return undefined;
    let gone = false;
    feed.ask(`/api/runs/${detail.id}/given-up`).then(
      (tasks) => gone || answer({ tasks, error: "" }),
      (error) => gone || answer({ tasks: null, error: error.message }),
    );
    return () => {
      gone = true;
    };
  }, [detail.id, detail.generation, Boolean(live)]);
  const tasks = live ? heard : asked.tasks;
  return html`<div class="panel"><section>
    <h2>Tasks that were given up</h2>
    <p class="note">After as many tries as data.tasks.maxDeliveries allows. A failed episode is a failure, never a reward.</p>
    ${!live && asked.error && html`<p class="trouble">${asked.error}</p>`}
    ${tasks == null && !asked.error && html`<p class="none">Reading…</p>`}
    ${tasks?.length === 0 && html`<p class="none">None.</p>`}
    ${tasks?.length > 0 && html`<table id="given-up">
      <thead><tr><th>Task</th><th>Prompt</th><th>Error</th><th>What it said</th><th class="n">Tries</th><th>Worker</th><th>When</th></tr></thead>
      <tbody>${tasks.map((task) => html`<tr key=${task.task}>
        <td class="id">${task.task}</td><td class="id">${task.prompt}</td><td>${task.error}</td>
        <td class="soft words">${task.message}${task.where && html`<br /><code>${task.where}</code>`}</td>
        <td class="n">${task.attempts}</td><td class="id">${task.worker}</td><td class="soft">${moment(task.at)}</td>
      </tr>`)}</tbody>
    </table>`}
  </section></div>`;
}
