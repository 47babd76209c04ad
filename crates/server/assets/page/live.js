// The figures of `GET /v1/live`, asked for once a second while they are shown.

import * as api from "./api.js";

const EVERY_MS = 1000;
/** Pause after a failure. */
const AFTER_FAILURE_MS = 4000;

/** Asks while `isWanted()`; `onfigures` gets each answer, `onfailure` what went wrong. */
export class Live {
  constructor({ isWanted, onfigures, onfailure }) {
    Object.assign(this, { isWanted, onfigures, onfailure, timer: null, isAsking: false });
    document.addEventListener("visibilitychange", () => this.wake());
  }

  /** Asks now, and goes on asking. */
  wake() {
    clearTimeout(this.timer);
    if (!this.isAsking && this.isWanted() && !document.hidden) this.ask();
  }

  async ask() {
    this.isAsking = true;
    let pause = EVERY_MS;
    const began = performance.now();
    try {
      this.onfigures(await api.json("v1/live"));
    } catch (failure) {
      pause = AFTER_FAILURE_MS;
      await this.onfailure(failure);
    }
    this.isAsking = false;
    this.timer = setTimeout(() => this.wake(), Math.max(100, pause - (performance.now() - began)));
  }
}

/** The engines of the models that write text; none where the key sees its own tenant alone. */
const engines = (figures) => figures.models.map((model) => model.engine).filter(Boolean);

const sum = (list, of) => list.reduce((all, one) => all + of(one), 0);

/** Blocks for keys and values in use, and all of them. */
export function blocks(figures) {
  const all = sum(engines(figures), (engine) => engine.kv.blocks);
  return { all, used: all - sum(engines(figures), (engine) => engine.kv.free_blocks) };
}

/** Share of the blocks in use. */
export function kvShare(figures) {
  const { all, used } = blocks(figures);
  return all > 0 ? used / all : NaN;
}

/** Drafted and accepted tokens since the start. */
export function drafts(figures) {
  const list = engines(figures);
  return {
    drafted: sum(list, (engine) => engine.drafts.drafted_tokens),
    accepted: sum(list, (engine) => engine.drafts.accepted_tokens),
    forced: sum(list, (engine) => engine.drafts.forced_tokens),
  };
}

/**
 * Figures of the last seconds, the oldest first, as far as the server remembers them: enough for the
 * charts to begin with a course.
 */
export function past(figures) {
  const { history } = figures.total;
  const of = engines(figures).map((engine) => engine.history);
  const at = (lists, i) => (lists.length ? sum(lists, (list) => list[i] ?? 0) : NaN);
  return (history?.generated_tokens ?? []).map((generated, i) => ({
    running: at(of.map((one) => one.running), i),
    waiting: at(of.map((one) => one.waiting), i),
    kv: of.length === 1 ? of[0].kv_usage_ratio[i] : NaN,
    generated,
    prompt: history.prompt_tokens[i],
  }));
}
