// The view of the engine: charts of the last two minutes, and tables per model and tenant.

import { Chart } from "./chart.js";
import { h } from "./dom.js";
import { Live, blocks, drafts, kvShare, past } from "./live.js";
import { problem } from "./message.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const count = (value) => whole.format(value).replaceAll(",", "\u202f");
const rate = (value) => (value >= 100 || value === 0 ? count(value) : value.toFixed(1));
const share = (value) => `${(value * 100).toFixed(value >= 0.1 || value === 0 ? 0 : 1)} %`;

/** A time in seconds, in the unit that fits it. */
function time(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} \u00b5s`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return seconds < 100 ? `${seconds.toFixed(1)} s` : `${(seconds / 60).toFixed(1)} min`;
}

function span(seconds) {
  const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"], [Math.floor(seconds / 60) % 60, "min"], [Math.floor(seconds) % 60, "s"]];
  const first = parts.findIndex(([n]) => n > 0);
  return (first < 0 ? parts.slice(3) : parts.slice(first, first + 2)).map(([n, unit]) => `${n} ${unit}`).join(" ");
}

const quantiles = (of) => ["p50", "p95", "p99"].map((name) => ({ name: name.toUpperCase(), of: (now) => of(now)?.[name] }));

/** The charts; `now` is what `moment` makes of the server's figures. */
const CHARTS = [
  { title: "Requests", format: count, lines: [{ name: "running", of: (now) => now.running }, { name: "waiting", of: (now) => now.waiting }] },
  { title: "Tokens per second", format: rate, lines: [{ name: "generated", of: (now) => now.generated }, { name: "prompt", of: (now) => now.prompt }] },
  { title: "Time to first token", format: time, lines: quantiles((now) => now.ttft), note: "Of the requests that ended within the last minute" },
  { title: "Time per token", format: time, lines: quantiles((now) => now.tpot), note: "Of the requests that ended within the last minute" },
  { title: "KV memory in use", format: share, most: 1, lines: [{ name: "of all blocks", of: (now) => now.kv }] },
  { title: "Prompt tokens from the cache", format: share, most: 1, lines: [{ name: "in the last minute", of: (now) => now.hits }] },
  { title: "Accepted drafts", format: share, most: 1, lines: [{ name: "since the start", of: (now) => now.accepted }], note: "Share of the drafted tokens that became part of an answer" },
];

function moment(figures) {
  const { total } = figures;
  const { drafted, accepted } = drafts(figures);
  return {
    running: total.running,
    waiting: total.waiting,
    generated: total.generated_tokens_per_second,
    prompt: total.prompt_tokens_per_second,
    ttft: total.ttft_seconds,
    tpot: total.tpot_seconds,
    kv: kvShare(figures),
    hits: total.cache_hit_ratio ?? NaN,
    accepted: drafted > 0 ? accepted / drafted : NaN,
  };
}

const TRAFFIC = [
  ["Running", (one) => count(one.running)],
  ["Waiting", (one) => count(one.waiting)],
  ["Tokens/s", (one) => rate(one.generated_tokens_per_second)],
  ["Answers", (one) => count(one.ended.stop + one.ended.length)],
  ["Failed", (one) => count(one.ended.error)],
  ["TTFT P95", (one) => (one.ttft_seconds ? time(one.ttft_seconds.p95) : "-")],
];

export class Engine {
  constructor(element, host) {
    Object.assign(this, { element, host, isShown: false, charts: null });
    this.live = new Live({ isWanted: () => this.isShown, onfigures: (figures) => this.draw(figures), onfailure: (failure) => this.fail(failure) });
    this.state = h("div", { class: "state" });
    this.trouble = h("div");
    this.cards = h("div", { class: "cards" });
    this.tables = h("div", { class: "tables" });
    element.replaceChildren(this.state, this.trouble, this.cards, this.tables);
    this.state.append(h("h1", {}, "Engine"), h("span", {}, "Asking the server"));
  }

  setShown(isShown) {
    this.isShown = isShown;
    if (isShown) this.live.wake();
  }

  async fail(failure) {
    if (failure.kind === "key" && (await this.host.needKey(failure))) return;
    if (failure.kind === "away") this.host.isAway();
    if (!this.trouble.firstChild) this.trouble.append(problem(failure, () => this.live.wake()));
  }

  draw(figures) {
    this.trouble.replaceChildren();
    const now = moment(figures);
    if (!this.charts) {
      // A key of one tenant sees no engine, so its charts would stay empty.
      const isKnown = ({ title }) => figures.view === "all" || !/KV|drafts/.test(title);
      this.charts = CHARTS.filter(isKnown).map((chart) => new Chart(chart));
      this.cards.replaceChildren(...this.charts.map((chart) => chart.element));
      for (const one of past(figures)) this.charts.forEach((chart) => chart.add(one));
    }
    this.charts.forEach((chart) => chart.add(now));
    this.drawState(figures);
    this.drawTables(figures);
  }

  drawState(figures) {
    const isGood = figures.status === "ok";
    const { used, all } = blocks(figures);
    const { drafted, forced } = drafts(figures);
    const facts = [
      h("span", {}, h("i", { class: `dot ${isGood ? "good" : "bad"}`, "aria-hidden": "true" }), isGood ? "Serving" : figures.status),
      `Pelton ${figures.version}`,
      `up ${span(figures.uptime_seconds)}`,
      `${count(figures.total.generated_tokens)} tokens generated`,
      all > 0 ? `${count(used)} of ${count(all)} KV blocks` : null,
      drafted > 0 ? `${count(drafted)} drafted` : null,
      forced > 0 ? `${count(forced)} forced` : null,
      figures.view === "tenant" ? "only what your key's tenant does" : null,
    ];
    const shown = facts.filter(Boolean).map((fact) => (typeof fact === "string" ? h("span", {}, fact) : fact));
    this.state.replaceChildren(h("h1", {}, "Engine"), ...shown);
  }

  drawTables(figures) {
    const table = (title, rows) => h("section", { class: "card", "aria-label": title }, h("h2", {}, title),
      h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": title }, h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Name"), TRAFFIC.map(([name]) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, rows.map((one) => h("tr", {}, h("td", {}, one.name), TRAFFIC.map(([, of]) => h("td", {}, of(one)))))))));
    // A table that is being scrolled by keyboard keeps the focus.
    if (this.tables.contains(document.activeElement)) return;
    this.tables.replaceChildren(table("Models", figures.models), ...(figures.tenants.length ? [table("Tenants", figures.tenants)] : []));
  }
}

