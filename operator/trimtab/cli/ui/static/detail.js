// What is known of one run: its curves by name, the events in their order, and what is now.

export class Series {
  constructor() {
    this.steps = [];
    this.times = [];
    this.values = [];
  }

  /** A step that is told again, as after a restart, replaces what was told of it. */
  add(step, time, value) {
    let place = this.steps.length;
    while (place > 0 && this.steps[place - 1] >= step) place -= 1;
    const again = this.steps[place] === step ? 1 : 0;
    if (place === this.steps.length) {
      this.steps.push(step);
      this.times.push(time);
      this.values.push(value);
      return;
    }
    this.steps.splice(place, again, step);
    this.times.splice(place, again, time);
    this.values.splice(place, again, value);
  }
}

export class Detail {
  constructor(id) {
    this.id = id;
    this.now = {};
    this.figures = [];
    this.reset("");
  }

  reset(generation) {
    this.generation = generation;
    this.count = 0;
    this.series = new Map();
    this.began = null;
    this.events = [];
    this.newest = 0;
    this.time = 0;
  }

  take(said) {
    if (said.generation !== this.generation || said.from === 0) this.reset(said.generation);
    if (said.from !== this.count) return;
    for (const one of said.told) this.#add(one);
    this.count += said.told.length;
    if (said.figures) this.figures = said.figures;
  }

  #add(one) {
    this.time = Math.max(this.time, one.t);
    if (one.event) {
      if (one.event.what === "began") this.began = one.event;
      this.events.push({ ...one.event, t: one.t, step: this.newest });
      return;
    }
    this.newest = Math.max(this.newest, one.step);
    for (const [name, value] of Object.entries(one.values ?? {})) {
      if (!this.series.has(name)) this.series.set(name, new Series());
      this.series.get(name).add(one.step, one.t, value);
    }
  }

  get decisions() {
    return this.events.filter((event) => event.what === "rescaled");
  }
}
