// Keeps what the page shows as the server has it: one stream of events, taken up again where it broke off.

import { Detail } from "/static/detail.js";
import { visible } from "/static/words.js";

const SILENT_MS = 6000;
const WAITS_MS = [300, 700, 1500, 3000, 5000];

export class Feed {
  constructor(changed) {
    this.runs = [];
    this.trouble = "";
    this.connected = false;
    this.refused = "";
    this.details = new Map();
    this.loaded = false;
    this.#changed = changed;
    setInterval(() => this.#listen(), 1000);
  }

  #changed;
  #asked = "";
  #source = null;
  #heardAt = 0;
  #failures = 0;
  #waiting = 0;

  /** Of these runs everything is told; of others a line. */
  watch(ids) {
    const asked = ids.join(" ");
    if (asked === this.#asked && this.#source) return;
    this.#asked = asked;
    for (const id of [...this.details.keys()]) if (!ids.includes(id)) this.details.delete(id);
    for (const id of ids) if (!this.details.has(id)) this.details.set(id, new Detail(id));
    this.#open();
  }

  async ask(path) {
    const response = await fetch(path);
    const answer = JSON.parse(await response.text(), visible);
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }

  #open() {
    clearTimeout(this.#waiting);
    this.#source?.close();
    const query = new URLSearchParams();
    for (const detail of this.details.values()) {
      query.append("run", `${detail.id}:${detail.generation}:${detail.count}`);
    }
    const source = new EventSource(`/api/stream?${query}`);
    this.#source = source;
    this.#heardAt = Date.now();
    const on = (name, take) =>
      source.addEventListener(name, (event) => {
        if (source !== this.#source) return;
        this.#heardAt = Date.now();
        this.connected = true;
        this.refused = "";
        this.#failures = 0;
        take(JSON.parse(event.data, visible));
        this.#changed();
      });
    on("runs", (said) => {
      this.runs = said.runs;
      this.trouble = said.trouble;
      this.loaded = true;
    });
    on("told", (said) => this.details.get(said.id)?.take(said));
    on("now", (said) => {
      const detail = this.details.get(said.id);
      if (detail) detail.now = said.now;
    });
    on("beat", () => {});
    source.onerror = () => {
      if (source === this.#source) this.#lost();
    };
  }

  #listen() {
    if (this.#source && Date.now() - this.#heardAt > SILENT_MS) this.#lost();
  }

  #lost() {
    this.#source?.close();
    this.#source = null;
    this.connected = false;
    const wait = WAITS_MS[Math.min(this.#failures, WAITS_MS.length - 1)];
    this.#failures += 1;
    clearTimeout(this.#waiting);
    this.#waiting = setTimeout(() => this.#open(), wait * (0.5 + Math.random() / 2));
    this.#explain();
    this.#changed();
  }

  /** A stream that is refused does not say why. */
  async #explain() {
    try {
      const response = await fetch("/api/runs/none/samples");
      this.refused = response.status === 403 ? await response.text() : "";
    } catch {
      this.refused = "";
    }
    this.#changed();
  }
}
